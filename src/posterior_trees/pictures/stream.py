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
- blend(chunk): one part of the result, of the tiles that lie there.
- shrink(level, chunk): one part of a level of the pyramid.
- finish: probabilities and, last, the metadata.

The result equals that of `predict_tiled` to the bit. Parents are not stored: `grow` makes the same
of the same leaves. What is done is marked in `work/done` after it was written.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from posterior_trees.errors import InputError
from posterior_trees.imaging.adjust import Adjustment
from posterior_trees.imaging.ngff import Frame
from posterior_trees.imaging.source import Plane, open_source
from posterior_trees.imaging.stored import Tiles
from posterior_trees.imaging.tree_zarr import TreeWriter, all_nodes, put_in_place
from posterior_trees.pictures.tiles import Tile, assign, check_tiles, cut, part_edges, place_tile
from posterior_trees.pictures.window import Window
from posterior_trees.predictor import Predictor, evaluating
from posterior_trees.store import write_bytes, write_json
from posterior_trees.tree import Tree, grow, level_sizes

ROOM = 1.2
"""How much more of the disk must be free than is expected to be used."""
Item = tuple[int, ...]
PLANE, UNCHANGED = Plane(), Adjustment()


@dataclass
class Stream:
    """One picture on its way to `folder`; a copy that another process gets opens its own files."""

    make_predictor: Callable[[], Predictor]
    path: Path
    folder: Path
    work: Path
    plane: Plane = PLANE
    adjustment: Adjustment = UNCHANGED
    block: int = 1
    tile: int = 512
    overlap: int = 64
    dtype: str = "uint8"
    ngff: str = "0.5"
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        return {name: vars(self)[name] for name in self.__dataclass_fields__}

    @cached_property
    def predictor(self) -> Predictor:
        predictor = self.make_predictor()
        check_tiles(predictor, *self.sizes(predictor.multiple))
        return predictor

    @cached_property
    def window(self) -> Window:
        source = open_source(self.path, **self.plane._asdict())
        return Window(source, self.adjustment, self.block, self.predictor.multiple,
                      self.predictor.padding)  # fmt: skip

    @cached_property
    def tiles(self) -> list[Tile]:
        """As they are cut from the padded picture."""
        step = self.predictor.multiple
        return list(cut(self.window.padded, *self.sizes(step), step))

    @cached_property
    def places(self) -> list[tuple[Tile, list[slice]]]:
        """Where each lies on the picture, and which part of it that is."""
        return [place_tile(t, self.window.offset, self.window.shape) for t in self.tiles]

    @cached_property
    def writer(self) -> TreeWriter:
        pixel = self.window.source.pixel_size
        frame = Frame(pixel[0] if pixel else None, self.block)
        return TreeWriter(self.part, self.predictor.branching, self.window.shape,
                          dtype=self.dtype, ngff=self.ngff, frame=frame)  # fmt: skip

    @property
    def part(self) -> Path:
        """The result before it has its name."""
        return self.folder.with_name(f".{self.folder.name}.part")

    def sizes(self, step: int) -> tuple[int, int]:
        tile, overlap = (-(-size // step) * step for size in (self.tile, self.overlap))
        return tile, overlap

    def estimate(self) -> tuple[int, int]:
        """Bytes of what is kept meanwhile, and of the result without compression."""
        leaves = level_sizes(self.predictor.branching)[-1]
        scratch = sum(4 * leaves * t.down.numel() * t.across.numel() for t in self.tiles)
        item = np.dtype(self.dtype).itemsize
        pixels = sum(h * w for h, w in self.writer.sizes)
        return scratch, item * pixels * self.writer.nodes

    def check_room(self) -> None:
        """Refuse what the disks cannot hold."""
        scratch, result = self.estimate()
        needs: dict[int, tuple[Path, int]] = {}
        for place, size in ((self.work, scratch), (self.folder, result)):
            home = next(p for p in (place, *place.absolute().parents) if p.exists())
            device = home.stat().st_dev
            needs[device] = home, needs.get(device, (home, 0))[1] + size
        for home, size in needs.values():
            if (free := shutil.disk_usage(home).free) < ROOM * size:
                raise InputError(
                    f"scratch and result need {ROOM * size / 1e9:.1f} GB, {home} has "
                    f"{free / 1e9:.1f} GB free: --work, --dtype uint8, or fewer fields"
                )

    # steps

    def steps(self) -> Iterator[tuple[str, list[Item]]]:
        """In order; all of one are done before the next."""
        tiles: list[Item] = [(i,) for i in range(len(self.tiles))]
        yield "predict", tiles
        yield "gram", tiles[1:]
        yield "order", [()]
        yield "blend", [(i,) for i in range(len(list(self.writer.chunks())))]
        for level in range(1, len(self.writer.sizes)):
            count = len(list(self.writer.chunks(level)))
            yield "shrink", [(level, i) for i in range(count)]
        yield "finish", [()]

    def perform(self, step: str, item: Item) -> None:
        """One item of a step, and its mark."""
        with torch.inference_mode():
            getattr(self, step)(*item)
        if step != "finish":
            write_bytes(self.mark(step, item), b"")

    def mark(self, step: str, item: Item) -> Path:
        return self.work / "done" / "_".join(map(str, (step, *item)))

    def is_done(self, step: str, item: Item) -> bool:
        """Marked, and what was written is there in full."""
        if not self.mark(step, item).is_file():
            return False
        if step == "predict":
            tile, leaves = self.tiles[item[0]], level_sizes(self.predictor.branching)[-1]
            size = 4 * leaves * tile.down.numel() * tile.across.numel()
            files = self._tile_files(*item)
            return all(f.is_file() for f in files) and files[0].stat().st_size == size
        if step == "gram":
            return (self.work / "grams" / f"{item[0]}.json").is_file()
        return step != "order" or (self.work / "order.json").is_file()

    def begin(self) -> None:
        """Folders for what comes."""
        for name in ("done", "tiles", "grams"):
            (self.work / name).mkdir(parents=True, exist_ok=True)
        self.part.mkdir(parents=True, exist_ok=True)
        self.writer.begin()

    def predict(self, index: int) -> None:
        tile = self.tiles[index]
        y = self.window.read(tile.rows, tile.columns)
        with evaluating(self.predictor):
            tree = self.predictor(y.to(self.predictor.device)).to("cpu")
        if tree.shape != (1, *y.shape[-2:]):
            raise InputError(
                f"this model makes {tuple(tree.shape)} of {tuple(y.shape[1:])}: only models of "
                "one channel that keep the size are predicted to disk"
            )
        leaves, logs = self._tile_files(index)
        write_bytes(leaves, tree.leaves[0, :, 0].numpy().astype(np.float32).tobytes())
        write_bytes(logs, json.dumps(_to_json(tree.log_probs[-1][0])).encode())

    def gram(self, index: int) -> None:
        here, inner = self.places[index]
        grams = {}
        for other, (there, outer) in enumerate(self.places[:index]):
            common = _common(here, there)
            if common is None:
                continue
            mine = self._nodes(index, [_inside(c, h, p) for c, h, p in
                                       zip(common, here[:2], inner, strict=True)])  # fmt: skip
            theirs = self._nodes(other, [_inside(c, h, p) for c, h, p in
                                         zip(common, there[:2], outer, strict=True)])  # fmt: skip
            weights = _window(there, common).to(theirs.dtype)
            product = (weights * theirs).flatten(1).double() @ mine.flatten(1).double().T
            grams[other] = product.tolist()
        write_json(self.work / "grams" / f"{index}.json", grams)

    def order(self) -> None:
        """The numbering of each tile, and the probabilities of the field."""
        branching, sizes = self.predictor.branching, level_sizes(self.predictor.branching)
        numbering: list[list[int]] = []
        totals = [torch.zeros(1, n) for n in sizes]
        local = []
        for index, (place, _) in enumerate(self.places):
            products = torch.zeros(sum(sizes), sum(sizes), dtype=torch.float64)
            if index:
                grams = json.loads((self.work / "grams" / f"{index}.json").read_text())
                for other, gram in grams.items():
                    products += torch.tensor(gram, dtype=torch.float64)[numbering[int(other)]]
            numbering.append(_choose(products, branching))
            tree = self._tree(index, [slice(0, 1), slice(0, 1)])
            probs = torch.cat(tree.probs, dim=1)[:, numbering[-1]]
            area = place.window.sum().item() / (self.window.shape[0] * self.window.shape[1])
            for total, level in zip(totals, probs.split(sizes, dim=1), strict=True):
                total += area * level
            local.append(probs[0, -sizes[-1] :].tolist())
        logs = torch.cat([(t / t.sum(dim=1, keepdim=True)).log() for t in totals], dim=1)
        facts = {"numbering": numbering, "log_probs": _to_json(logs[0]), "local": local}
        write_json(self.work / "order.json", facts)

    def blend(self, index: int) -> None:
        rows, columns = list(self.writer.chunks())[index]
        size = rows.stop - rows.start, columns.stop - columns.start
        total, weight = torch.zeros(self.writer.nodes, *size), torch.zeros(size)
        for i, (place, inner) in enumerate(self.places):
            common = _common(Tile(rows, columns, place.down, place.across), place)
            if common is None:
                continue
            parts = [_inside(c, h, p) for c, h, p in zip(common, place[:2], inner, strict=True)]
            nodes = self._nodes(i, parts)[self.ordered["numbering"][i]]
            window = _window(place, common).to(weight.dtype)
            down, across = (slice(c.start - o.start, c.stop - o.start)
                            for c, o in zip(common, (rows, columns), strict=True))  # fmt: skip
            total[:, down, across] += window * nodes
            weight[down, across] += window
        self.writer.write(rows, columns, total.div_(weight))

    def shrink(self, level: int, index: int) -> None:
        self.writer.shrink(level, *list(self.writer.chunks(level))[index])

    def finish(self) -> None:
        """The metadata, last; then the result has its name."""
        local = np.array(self.ordered["local"], dtype=np.float64).T
        self.writer.finish(
            _from_json(self.ordered["log_probs"]), self.described_tiles(),
            all_nodes(local, self.predictor.branching), self.provenance,
        )  # fmt: skip
        put_in_place(self.part, self.folder)

    # what the steps share

    @cached_property
    def ordered(self) -> dict[str, Any]:
        return json.loads((self.work / "order.json").read_text())

    def described_tiles(self) -> Tiles:
        rows, columns = part_edges([place for place, _ in self.places])
        return Tiles(*self.sizes(self.predictor.multiple), self.window.padded, self.window.offset,
                     rows, columns)  # fmt: skip

    def _tile_files(self, index: int) -> tuple[Path, Path]:
        folder = self.work / "tiles"
        return folder / f"{index}.leaves", folder / f"{index}.json"

    def _tree(self, index: int, parts: Sequence[slice]) -> Tree:
        """The tree of a part of a tile, from what was written."""
        leaves, logs = self._tile_files(index)
        tile = self.tiles[index]
        shape = (level_sizes(self.predictor.branching)[-1], tile.down.numel(), tile.across.numel())
        stored = np.memmap(leaves, np.float32, "r", shape=shape)
        images = torch.from_numpy(np.array(stored[:, parts[0], parts[1]]))[None, :, None]
        log_probs = torch.tensor([_from_json(json.loads(logs.read_text()))])
        return grow(images, log_probs, self.predictor.branching)

    def _nodes(self, index: int, parts: Sequence[slice]) -> Float[Tensor, "nodes h w"]:
        return torch.cat(self._tree(index, parts).images, dim=1)[0, :, 0]


KEPT: dict[str, Stream] = {}
"""The streams that this process works on, with their open files and networks."""


def perform(stream: Stream, step: str, item: Item) -> None:
    """One item, by whichever process; it keeps what it opened for the next."""
    key = str(stream.work)
    if key not in KEPT:
        KEPT.clear()
        KEPT[key] = stream
    KEPT[key].perform(step, item)


def _choose(products: Float[Tensor, "n n"], branching: Sequence[int]) -> list[int]:
    """For each place in the tree, which of a tile's nodes goes there: `Canvas.match`, by the inner
    products of what lies there (rows) with the tile's nodes (columns)."""
    order, first = [[0]], 1
    for level, k in enumerate(branching, start=1):
        order.append([])
        for place, parent in enumerate(order[level - 1]):
            there, here = first + k * place, first + k * parent
            cost = -products[there : there + k, here : here + k]
            order[level] += [k * parent + child for child in assign(cost)]
        first += len(order[level])
    starts = np.cumsum([0, *map(len, order)]).tolist()
    return [start + node for start, level in zip(starts, order, strict=False) for node in level]


def _common(one: Tile, other: Tile) -> tuple[slice, slice] | None:
    """Where two parts of the picture overlap."""
    parts = []
    for a, b in zip(one[:2], other[:2], strict=True):
        first, last = max(a.start, b.start), min(a.stop, b.stop)
        if first >= last:
            return None
        parts.append(slice(first, last))
    return parts[0], parts[1]


def _inside(common: slice, place: slice, part: slice) -> slice:
    """A part of the picture as a part of a tile, of which `part` lies at `place`."""
    return slice(common.start - place.start + part.start, common.stop - place.start + part.start)


def _window(place: Tile, common: tuple[slice, slice]) -> Float[Tensor, "h w"]:
    down, across = (
        weights[c.start - p.start : c.stop - p.start]
        for weights, p, c in zip(place[2:], place[:2], common, strict=True)
    )
    return down[:, None] * across


def _to_json(logs: Float[Tensor, "n"]) -> list[float | None]:
    return [None if np.isneginf(value) else value for value in logs.tolist()]


def _from_json(logs: Sequence[float | None]) -> list[float]:
    return [-np.inf if value is None else value for value in logs]
