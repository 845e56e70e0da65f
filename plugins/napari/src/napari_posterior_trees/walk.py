"""Walking in a tree: down and up, leaves side by side, nuclei, the probability of a place."""

from collections.abc import Callable
from functools import partial
from pathlib import Path as File
from typing import Any

import numpy as np
from magicgui.widgets import ComboBox, Container, Label, PushButton
from napari.layers import Layer

from napari_posterior_trees import job
from napari_posterior_trees.choice import LayerChoice
from napari_posterior_trees.job import ENDING
from napari_posterior_trees.layers import (
    COUNT,
    INHERITED,
    NODE,
    NUCLEI,
    PARTS,
    PROVENANCE,
    TREE,
    LayerData,
    Path,
    leaves_under,
    node_layer,
    nuclei_layer,
    prob_at,
    prob_of,
    title,
)
from napari_posterior_trees.plane import pixel_at, see
from posterior_trees.imaging.stored import StoredTree, name_of
from posterior_trees.pictures.nuclei.count import Count

Run = Callable[..., None]
"""`run(words, function, then)`: what `TreeWidget.run` does."""


class WalkBox(Container):
    """Where we are in a tree, and ways on from there.

    One layer shows the node; going on replaces it. The layer that keeps the tree is the root."""

    def __init__(self, viewer: Any, run: Run) -> None:
        self.viewer, self.run, self.path = viewer, run, ()
        self.hidden: list[Any] = []
        self.camera: tuple[Any, float] | None = None
        self.tree = LayerChoice(viewer, lambda layer: TREE in layer.metadata, label="tree")
        self.where, self.here = Label(), Label()
        self.branches = Container(labels=False)
        self.up = PushButton(text="Up")
        self.leaves, self.nuclei = PushButton(text="Leaves"), PushButton(text="Nuclei")
        self.dtype = ComboBox(choices=["uint8", "uint16", "float32"], label="numbers")
        self.save = PushButton(text="Save as OME-Zarr …")
        buttons = Container(widgets=[self.up, self.leaves, self.nuclei], layout="horizontal",
                            labels=False)  # fmt: skip
        saving = Container(widgets=[self.dtype, self.save], layout="horizontal", labels=False)
        rest = Container(widgets=[self.where, self.branches, buttons, self.here, saving],
                         labels=False)  # fmt: skip
        super().__init__(widgets=[self.tree, rest])
        self.tree.changed.connect(lambda _: self.go(()))
        self.up.changed.connect(lambda: self.go(self.path[:-1]))
        self.leaves.changed.connect(self.show_leaves)
        self.nuclei.changed.connect(self.count_nuclei)
        self.save.changed.connect(self.save_tree)
        viewer.mouse_move_callbacks.append(self._look)
        viewer.layers.selection.events.active.connect(self._follow)
        viewer.dims.events.current_step.connect(self.say)
        for label in (self.where, self.here):
            label.native.setWordWrap(True)
        self.say()

    def leave(self) -> None:
        """The window is closed: take the layers of nodes away, and listen no more."""
        self.clear()
        self.viewer.mouse_move_callbacks.remove(self._look)
        self.viewer.layers.selection.events.active.disconnect(self._follow)
        self.viewer.dims.events.current_step.disconnect(self.say)

    @property
    def root(self) -> Any:
        """The layer of the tree; None if it is gone."""
        layer = self.tree.value
        return layer if layer in self.viewer.layers else None

    @property
    def picture(self) -> int:
        """Of a tree of several pictures the one that the slider is at."""
        if self.root is None or self.root.ndim == 2:
            return 0
        place = pixel_at(self.root, self.viewer.dims.point, self.viewer.dims.units)
        return int(np.clip(round(place[0]), 0, len(self.root.data) - 1))

    def go(self, path: Path) -> None:
        """Go to a node."""
        nodes = self._nodes()
        is_at_node = bool(self.path and path) and len(nodes) == 1 and self.camera is None
        if not is_at_node or self.root is None:
            self.clear()
        self.path = path if self.root is not None else ()
        if self.path and is_at_node:  # napari takes a third of a second to remove a layer
            pixels, options, _ = self._layer(path)
            nodes[0].data, nodes[0].name = pixels, options["name"]
            nodes[0].metadata = options["metadata"]
        elif self.path:
            self._hide([self.root])
            self._add(path)
        self.say()

    def show_leaves(self) -> None:
        """The leaves below the node side by side; and back."""
        was_shown = self.camera is not None
        self.go(self.path)
        if was_shown or self.root is None:
            return
        self.clear()
        self._hide([layer for layer in self.viewer.layers if layer.visible])
        for path in reversed(leaves_under(self.root.metadata[TREE], self.path)):
            self._add(path)
        camera = self.viewer.scene.camera
        self.camera = camera.center, camera.zoom
        self.viewer.canvas.grid.enabled = True
        self.viewer.reset_view()

    def clear(self) -> None:
        """Take the layers of nodes away, and show what they stood for."""
        if self.camera is not None:
            self.viewer.canvas.grid.enabled = False
            camera = self.viewer.scene.camera
            camera.center, camera.zoom = self.camera
            self.camera = None
        for layer in self._nodes():
            self.viewer.layers.remove(layer)
        for layer in self.hidden:
            layer.visible = True
        self.hidden = []

    def count_nuclei(self) -> None:
        if (root := self.root) is not None:
            tree, parts = root.metadata[TREE], root.metadata[PARTS]
            work = partial(job.count, tree, parts, self.picture)
            self.run("Counting …", work, partial(self._show_nuclei, root))

    def save_tree(self) -> None:
        """Ask for a name, and write the tree of one picture there."""
        if (root := self.root) is None or not (name := self.ask(root.name)):
            return
        counted = [layer.metadata.get(COUNT) for layer in self._nuclei_of(root)]
        frame = see(root, self.viewer.dims).frame()
        work = partial(
            job.save, File(name.removesuffix(ENDING) + ENDING),
            root.metadata[TREE][self.picture], root.metadata[PARTS], frame, self.dtype.value,
            root.metadata.get(PROVENANCE, {}), counted[0] if counted else None,
        )  # fmt: skip
        self.run("Saving …", work, lambda folder: f"Saved as {folder}")

    def ask(self, name: str) -> str:
        """The name of a folder to write; empty if there is none."""
        from qtpy.QtWidgets import QFileDialog

        return QFileDialog.getSaveFileName(self.native, "Save the tree", name + ENDING)[0]

    def say(self, *_: Any) -> None:
        """Where we are, and the branches from here."""
        tree = self.root.metadata[TREE] if self.root is not None else None
        self.where.value, self.here.value = "No tree yet", ""
        texts: list[tuple[str, bool]] = []
        if tree is not None:
            prob = prob_of(tree, self.path, self.picture)
            self.where.value = f"Node {title(self.path, prob)}"
            for child in range((*tree.branching, 0)[len(self.path)]):
                path = (*self.path, child)
                part = prob_of(tree, path, self.picture)
                share = part / prob if prob else 0.0
                texts.append((f"{title(path, part)} ({share:.0%} of this branch)", part > 0))
        while len(self.branches) < len(texts):
            button = PushButton()
            button.changed.connect(partial(self._descend, len(self.branches)))
            self.branches.append(button)
        for child, button in enumerate(self.branches):
            button.visible = child < len(texts)
            if child < len(texts):
                button.text, button.enabled = texts[child]
        self.up.enabled = bool(self.path)
        self.leaves.enabled = self.nuclei.enabled = tree is not None
        self.save.enabled = tree is not None and not isinstance(tree, StoredTree)

    def _descend(self, child: int) -> None:
        self.go((*self.path, child))

    def _look(self, viewer: Any, event: Any) -> None:
        """Say how probable node and children are in the tile under the cursor."""
        if (root := self.root) is None or not root.metadata[PARTS]:
            return
        tree, parts = root.metadata[TREE], root.metadata[PARTS]
        pixel = pixel_at(root, viewer.cursor.position, viewer.dims.units)[-2:]
        place = (round(pixel[0]), round(pixel[1]))
        node = prob_at(tree, parts, self.path, place)
        if node is None:
            self.here.value = ""
            return
        depth = len(self.path) + 1
        paths = dict.fromkeys([self.path, *(p[:depth] for p in leaves_under(tree, self.path))])
        words = [f"{name_of(p)}: {prob_at(tree, parts, p, place):.3f}" for p in paths]
        self.here.value = f"Probability of this place: {', '.join(words)}"

    def _follow(self, event: Any) -> None:
        """A tree that is opened or chosen in the list of layers is the one to walk."""
        layer = event.value
        if layer is not None and TREE in layer.metadata and layer in self.tree.choices:
            self.tree.value = layer

    def _hide(self, layers: list[Any]) -> None:
        self.hidden = [layer for layer in layers if layer.visible]
        for layer in self.hidden:
            layer.visible = False

    def _nodes(self) -> list[Any]:
        return [layer for layer in self.viewer.layers if NODE in layer.metadata]

    def _layer(self, path: Path) -> LayerData:
        prob = prob_of(self.root.metadata[TREE], path, self.picture)
        return node_layer(self.root, path, f"{self.root.name} {title(path, prob)}")

    def _add(self, path: Path) -> None:
        """The layer of a node, just above the root's."""
        layer = Layer.create(*self._layer(path))
        self.viewer.layers.insert(self.viewer.layers.index(self.root) + 1, layer)

    def _nuclei_of(self, root: Any) -> list[Any]:
        tree = root.metadata[TREE]
        return [layer for layer in self.viewer.layers if layer.metadata.get(NUCLEI) is tree]

    def _show_nuclei(self, root: Any, counted: Count) -> str:
        pairs = zip(counted.nuclei, counted.owned, strict=True)
        rows = [{"label": label, "probability": nucleus.probability, "pixels": owned}
                for label, (nucleus, owned) in enumerate(pairs, start=1)]  # fmt: skip
        if root in self.viewer.layers:
            for layer in self._nuclei_of(root):
                self.viewer.layers.remove(layer)
            place = {key: getattr(root, key) for key in INHERITED}
            labels, name = counted.labels.int().numpy(), f"{root.name} nuclei"
            layer = Layer.create(*nuclei_layer(labels, rows, name, root.metadata[TREE], place))
            layer.metadata[COUNT] = counted
            self.viewer.layers.append(layer)
        return f"{len(rows)} nuclei, {len(rows) - len(counted.uncertain)} of them in all leaves"
