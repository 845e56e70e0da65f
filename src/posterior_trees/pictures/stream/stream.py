r"""A tree of a picture of any size, on disk: the tiles of `tiles.py` in the memory of one tile and
its neighbours.

Each step is a function of what is on disk and of an index, so that it can be done by any process,
and again:

- predict(tile): its leaves and log-probabilities, float32, to `work/`.
- gram(tile): with each earlier tile $s$ that it overlaps, the inner products of all nodes,
  $G^{st}_{ij} = \sum_u w_s(u)\, x_{si}(u)\, x_{tj}(u)$.
- order: the numbering of every tile, in turn, from the $G$ alone: what `tiles.py` maximises is
  $\sum_s G^{st}$, with the rows of $s$ in the order that is chosen already. This is why the tiles
  cannot simply be predicted, matched and blended side by side: matching needs all earlier ones.
- blend(chunk): one part of the result, of the tiles that lie there, and how bright its leaves are.
- count(block), label(block): the nuclei of `nuclei/blocks.py`, and their labels.
- shrink(level, chunk): one part of a level of the pyramid.
- finish: probabilities, labels, tables and, last, the metadata.

The result equals that of `predict_tiled` to the bit, and the nuclei are those of `count_nuclei`.
What is done is marked in `work/done` after it was written. A tile goes when nobody reads it again.
"""

import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from posterior_trees.errors import InputError
from posterior_trees.imaging.regions import histogram
from posterior_trees.imaging.stack import need
from posterior_trees.imaging.tree_zarr import LABELS, all_nodes
from posterior_trees.pictures.nuclei.blocks import Found, Odds, count_block, paint
from posterior_trees.pictures.nuclei.count import Count, choose_threshold, sum_up
from posterior_trees.pictures.stream.disk import Item, from_json
from posterior_trees.pictures.stream.layout import Layout, Place, common
from posterior_trees.pictures.tables import describe_nuclei
from posterior_trees.pictures.tiles import Tile, match, parts_of
from posterior_trees.predictor import evaluating
from posterior_trees.store import make_folder_of, write_bytes, write_json
from posterior_trees.tree import level_sizes


class Stream(Layout):
    """The steps of one picture."""

    def __reduce__(self) -> tuple[type, tuple]:
        return Stream, tuple(vars(self)[name] for name in self.__dataclass_fields__)

    def steps(self) -> Iterator[tuple[str, list[Item]]]:
        """In order; all of one are done before the next."""
        tiles, blocks, chunks = map(_items, (self.tiles, self.blocks, self.chunks))
        yield "predict", tiles
        yield "gram", tiles[1:]
        yield "order", [()]
        yield "blend", chunks
        if self.is_counted:
            yield "count", blocks
            yield "label", blocks
        for level in range(1, len(self.writer.sizes)):
            yield "shrink", [(level, *i) for i in _items(list(self.writer.chunks(level)))]
        yield "finish", [()]

    def perform(self, todo: tuple[str, Item]) -> None:
        """One item of a step, and its mark. (An engine sends this once for all steps.)"""
        step, item = todo
        with torch.inference_mode():
            files = getattr(self, step)(*item)
        self.marks.set(step, item, files or ())
        if step == self.last and not self.keeps_tiles:
            for tile in self.tiles_in(self.areas[item[0]]):
                if self._is_used_up(tile):
                    self.raw.drop(tile)

    def is_done(self, step: str, item: Item) -> bool:
        """Marked, and what was written is there in full, or not needed any more."""
        is_needless = step == "predict" and self._is_used_up(*item)
        return is_needless or self.marks.has(step, item)

    def _is_used_up(self, tile: int) -> bool:
        place = self.places[tile][0][:2]
        readers = (i for i, area in enumerate(self.areas) if common(area, place))
        return all(self.marks.has(self.last, (i,)) for i in readers)

    def begin(self) -> None:
        """Empty arrays, which all parts of are then written to."""
        self.writer.begin()
        if self.is_deep:
            self.deep.begin()

    def predict(self, index: int) -> Sequence[Path]:
        tile = self.tiles[index]
        y = self.window.read(tile.rows, tile.columns)
        with evaluating(self.predictor):
            seen = self.predictor.measurement.observe(y.to(self.predictor.device))
            tree = self.predictor(seen).to("cpu")
        if tree.shape != (1, *y.shape[-2:]):
            raise InputError(
                f"this model makes {tuple(tree.shape)} of {tuple(y.shape[1:])}: only models of "
                "one channel that keep the size are predicted to disk"
            )
        return self.raw.write(index, tree)

    def gram(self, index: int) -> Sequence[Path]:
        grams = {}
        for other in range(index):
            if not (shared := common(self.places[index][0][:2], self.places[other][0][:2])):
                continue
            mine, theirs = (self._nodes_at(i, shared) for i in (index, other))
            weights = _weights(self.places[other][0], shared).to(theirs.dtype)
            product = (weights * theirs).flatten(1).double() @ mine.flatten(1).double().T
            grams[other] = product.tolist()
        file = self.work / "grams" / f"{index}.json"
        write_json(file, grams)
        return [file]

    def order(self) -> Sequence[Path]:
        """The numbering of each tile, and the probabilities of the field."""
        branching, sizes = self.predictor.branching, level_sizes(self.predictor.branching)
        first = np.cumsum([0, *sizes]).tolist()
        numbering: list[list[int]] = []
        totals = [torch.zeros(1, n) for n in sizes]
        local = []
        for index, (place, _) in enumerate(self.places):
            products = torch.zeros(sum(sizes), sum(sizes), dtype=torch.float64)
            if index:
                grams = json.loads((self.work / "grams" / f"{index}.json").read_text())
                for other, gram in grams.items():
                    products += torch.tensor(gram, dtype=torch.float64)[numbering[int(other)]]
            order = match(
                lambda level, there, here, all_of=products: all_of[
                    first[level] + there.start : first[level] + there.stop,
                    first[level] + here.start : first[level] + here.stop,
                ],
                branching,
            )
            numbering.append([a + node for a, nodes in zip(first, order, strict=False)
                              for node in nodes])  # fmt: skip
            probs = self.raw.tree(index, [slice(0, 1), slice(0, 1)]).probs
            area = place.window.sum().item() / (self.window.shape[0] * self.window.shape[1])
            for total, level, nodes in zip(totals, probs, order, strict=True):
                total += area * level[:, nodes]
            local.append(probs[-1][0, order[-1]].tolist())
        logs = [(total / total.sum(dim=1, keepdim=True)).log()[0].tolist() for total in totals]
        file = self.work / "order.json"
        write_json(file, {"numbering": numbering, "log_probs": logs, "local": local})
        return [file]

    def blend(self, index: int) -> Sequence[Path]:
        place = self.chunks[index]
        nodes = self.read(*place)
        self.writer.write(*place, nodes)
        if self.is_deep:
            self.deep.write(*place, nodes)
        if not self.is_counted:
            return []
        file = self.work / "histograms" / f"{index}.json"
        leaves = nodes[len(nodes) - self.raw.leaves :][self.odds.present]
        write_json(file, torch.stack([histogram(leaf) for leaf in leaves]).sum(dim=0).tolist())
        return [file]

    def read(self, rows: slice, columns: slice) -> Float[Tensor, "nodes h w"]:
        """All nodes in a part of the picture."""
        area = rows, columns
        size = rows.stop - rows.start, columns.stop - columns.start
        total, weight = torch.zeros(self.writer.nodes, *size), torch.zeros(size)
        for tile in self.tiles_in(area):
            place = self.places[tile][0]
            shared = common(area, place[:2])
            assert shared is not None
            nodes = self._nodes_at(tile, shared)[self.ordered["numbering"][tile]]
            window = _weights(place, shared).to(weight.dtype)
            down, across = (slice(c.start - o.start, c.stop - o.start)
                            for c, o in zip(shared, area, strict=True))  # fmt: skip
            total[:, down, across] += window * nodes
            weight[down, across] += window
        return total.div_(weight)

    def count(self, index: int) -> Sequence[Path]:
        block = self.blocks[index]
        leaves = self.read(block.tall, block.wide)[-self.raw.leaves :][self.odds.present]
        found = count_block(leaves, block, self.odds, self.bright)
        file = self._found_file(index)
        write_bytes(make_folder_of(file), found.to_bytes())
        return [file]

    def label(self, index: int) -> Sequence[Path]:
        block = self.blocks[index]
        area = block.rows, block.columns
        near = [i for i, b in enumerate(self.blocks) if common(area, (b.tall, b.wide))]
        labels = paint(((self.before[i], self._found(i)) for i in near), *area)
        self.writer.write_labels(*area, labels.numpy())
        numbers, pixels = labels[labels > 0].unique(return_counts=True)
        file = self.work / "labels" / f"{index}.json"
        write_json(file, list(zip(numbers.tolist(), pixels.tolist(), strict=True)))
        return [file]

    def shrink(self, level: int, index: int) -> None:
        self.writer.shrink(level, *list(self.writer.chunks(level))[index])

    def finish(self) -> None:
        """The metadata, last."""
        local = np.array(self.ordered["local"], dtype=np.float64).T
        logs = [log for level in self.ordered["log_probs"] for log in from_json(level)]
        self.writer.finish(
            logs, self.described_tiles(), all_nodes(local, self.predictor.branching),
            self.provenance,
            describe_nuclei(self.field, self.counted(), self.frame) if self.is_counted else None,
        )  # fmt: skip

    # what the steps share

    @cached_property
    def ordered(self) -> dict[str, Any]:
        return json.loads((self.work / "order.json").read_text())

    @cached_property
    def odds(self) -> Odds:
        places = [place for place, _ in self.places]
        parts = parts_of(places, [torch.tensor(p) for p in self.ordered["local"]])
        logs = torch.tensor(from_json(self.ordered["log_probs"][-1]))
        return Odds.of(logs, self.predictor.branching, self.window.shape, parts)

    @cached_property
    def bright(self) -> float | int:
        """What nuclei are brighter than."""
        if self.threshold is not None:
            return self.threshold
        files = (self.work / "histograms" / f"{i}.json" for i in range(len(self.chunks)))
        return choose_threshold([torch.tensor(json.loads(file.read_text())) for file in files])

    @cached_property
    def before(self) -> list[int]:
        """How many nuclei there are in the blocks before each."""
        counts = [Found.count_in(self._found_file(i)) for i in range(len(self.blocks))]
        return np.cumsum([0, *counts]).tolist()

    def counted(self) -> Count:
        """What `count_nuclei` says of the tree."""
        owned = np.zeros(self.before[-1] + 1, dtype=np.int64)
        for index in range(len(self.blocks)):
            pairs = json.loads((self.work / "labels" / f"{index}.json").read_text())
            for number, pixels in pairs:
                owned[number] += pixels
        found = (self._found(i) for i in range(len(self.blocks)))
        home = self.part if self.part.is_dir() else self.folder
        labels = need("zarr").open_array(home / LABELS / "0", mode="r")
        return sum_up(found, self.odds, self.bright, owned[1:].tolist(), labels)

    def _nodes_at(self, tile: int, area: Place) -> Float[Tensor, "nodes h w"]:
        """What a tile has at a place of the picture."""
        (place, part) = self.places[tile]
        inside = [slice(a.start - at.start + p.start, a.stop - at.start + p.start)
                  for a, at, p in zip(area, place[:2], part, strict=True)]  # fmt: skip
        return torch.cat(self.raw.tree(tile, inside).images, dim=1)[0, :, 0]

    def _found_file(self, index: int) -> Path:
        return self.work / "found" / f"{index}.npz"

    def _found(self, index: int) -> Found:
        return Found.from_bytes(self._found_file(index).read_bytes())


def _items(all_of: Sequence[Any]) -> list[Item]:
    return [(i,) for i in range(len(all_of))]


def _weights(place: Tile, area: Place) -> Float[Tensor, "h w"]:
    down, across = (
        weights[c.start - p.start : c.stop - p.start]
        for weights, p, c in zip(place[2:], place[:2], area, strict=True)
    )
    return down[:, None] * across
