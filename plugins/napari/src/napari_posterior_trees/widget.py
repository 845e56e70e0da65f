"""The window: a model predicts the tree of what is seen of a layer, and one walks in it."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from magicgui.widgets import (
    ComboBox,
    Container,
    FileEdit,
    FloatSpinBox,
    Label,
    ProgressBar,
    PushButton,
)
from napari.layers import Image, Layer
from napari.qt.threading import create_worker
from qtpy.QtCore import QEvent, QObject, QTimer
from qtpy.QtWidgets import QFileDialog, QMessageBox

from napari_posterior_trees import job
from napari_posterior_trees.choice import LayerChoice
from napari_posterior_trees.job import ENDING, Job, Predicted, Settings, Stopped
from napari_posterior_trees.layers import NODE, PROVENANCE, SOURCE, TREE, root_layer
from napari_posterior_trees.plane import Seen, see
from napari_posterior_trees.walk import Run, WalkBox
from posterior_trees.errors import PosteriorTreesError, words_for
from posterior_trees.models.shelf import list_models

BEST = "the best there is"
FAR = 1e9
"""Beyond the numbers that cameras count to."""


class PredictBox(Container):
    """What to predict, and how."""

    def __init__(self, viewer: Any, run: Run, done: Callable[[Any], None]) -> None:
        self.viewer, self.run, self.done = viewer, run, done
        self.image = LayerChoice(viewer, is_input, label="image")
        self.model = ComboBox(choices=list(list_models()), value="cells", label="model")
        self.file = FileEdit(nullable=True, filter="*.safetensors", label="or a file")
        self.black = FloatSpinBox(min=-FAR, max=FAR, label="black")
        self.white = FloatSpinBox(min=-FAR, max=FAR, value=255, label="white")
        self.contrast = PushButton(text="Take the contrast limits")
        self.gamma = FloatSpinBox(min=0.05, max=20, step=0.05, value=1, label="gamma")
        self.scale = FloatSpinBox(min=0, max=16, step=0.05, value=job.AUTO, label="scale (0: auto)")
        devices = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count())),
                   *(["mps"] if torch.backends.mps.is_available() else [])]  # fmt: skip
        self.device = ComboBox(choices=[BEST, *devices], label="device")
        super().__init__(widgets=[
            self.image, self.model, self.file, self.black, self.white, self.contrast, self.gamma,
            self.scale, self.device,
        ])  # fmt: skip
        self.image.changed.connect(self._suggest_levels)
        self.contrast.changed.connect(self._take_contrast)
        self._suggest_levels(self.image.value)

    def settings(self) -> Settings:
        chosen = self.file.value
        model = str(chosen) if isinstance(chosen, Path) else self.model.value
        device = None if self.device.value == BEST else self.device.value
        levels = (self.black.value, self.white.value)
        return Settings(model, device, levels, self.gamma.value, self.scale.value)

    def start(self) -> None:
        """Predict what is seen of the layer now, whatever becomes of the layer meanwhile."""
        layer = self.image.value
        if layer not in self.viewer.layers:
            raise job.InputError("there is no image to predict: open one")
        seen, settings = see(layer, self.viewer.dims), self.settings()
        work = partial(job.predict, seen, settings)
        if seen.size[0] * seen.size[1] * (settings.scale or 1) ** 2 > job.HUGE:
            answer = self.ask(seen)
            if answer is None:
                return
            if answer:
                folder = Path(answer) / f"{seen.name}{ENDING}"
                work = partial(job.predict_to_disk, seen, settings, folder)
        then = partial(self._show, seen.name, layer.unique_id)
        self.run(f"Predicting {seen.name} …", work, then)

    def ask(self, seen: Seen) -> str | None:
        """Of a huge picture, the folder to predict to; "" for memory, None to leave it."""
        kinds = QMessageBox.StandardButton
        size = "×".join(map(str, seen.size))
        said = QMessageBox.question(
            self.native, "A large picture",
            f"{seen.name} has {size} pixels. Predict its tree to disk, part by part? "
            "(No: all of it in memory)", kinds.Yes | kinds.No | kinds.Cancel,
        )  # fmt: skip
        if said == kinds.Yes:
            return QFileDialog.getExistingDirectory(self.native, "Folder for the tree") or None
        return "" if said == kinds.No else None

    def _show(self, name: str, source: Any, made: Predicted) -> str:
        """The tree in a layer, in place of what was predicted of the same layer before."""
        layers = self.viewer.layers
        for layer in [layer for layer in layers if layer.metadata.get(SOURCE) == source]:
            layers.remove(layer)
        kept = {SOURCE: source, PROVENANCE: made.provenance}
        layer = Layer.create(*root_layer(made.tree, made.parts, f"{name} tree", made.place, **kept))
        layers.append(layer)
        self.done(layer)
        scale = made.provenance["scale"]
        return "; ".join(filter(None, (f"Predicted at {scale:g} of its size", made.note)))

    def _suggest_levels(self, layer: Any) -> None:
        """All numbers that the layer could hold."""
        if layer is not None:
            self.black.value, self.white.value = job.RANGES.get(str(layer.dtype), (0, 1))

    def _take_contrast(self) -> None:
        if self.image.value is not None:
            self.black.value, self.white.value = self.image.value.contrast_limits


class TreeWidget(Container):
    """Predicting above, walking below, and a bar for what takes time."""

    def __init__(self, napari_viewer: Any) -> None:
        self.job: Job | None = None
        self.is_closed = False
        self.walking = WalkBox(napari_viewer, self.run)
        self.predicting = PredictBox(napari_viewer, self.run, self._walk)
        self.button = PushButton(text="Predict")
        self.bar, self.status = ProgressBar(max=1, visible=False), Label()
        super().__init__(widgets=[self.predicting, self.button, self.bar, self.status,
                                  self.walking], labels=False)  # fmt: skip
        self.status.native.setWordWrap(True)
        self.walking.here.native.setWordWrap(True)
        self.button.changed.connect(self.start_or_cancel)
        self.timer = QTimer(self.native)
        self.timer.timeout.connect(self._tick)
        self.farewell = Farewell(self.native, self.leave)

    def start_or_cancel(self) -> None:
        if self.job is not None:
            self.job.stop.set()
            self.button.enabled = False
            return
        try:
            self.predicting.start()
        except PosteriorTreesError as error:
            self.status.value = str(error)

    def run(self, words: str, function: Callable[[Job], Any], then: Callable[[Any], str]) -> None:
        """`function(job)` in a thread, then `then(its result)` here, which says what was done.
        Meanwhile there is one button, to cancel."""
        self.job = current = Job()
        self._lock(words)
        worker = current.worker = create_worker(_work, function, current, _start_thread=False)
        worker.returned.connect(partial(self._end, current, then))
        worker.errored.connect(lambda _: self._end(current, then, "It failed: see the message"))
        worker.start()

    def reset_choices(self, *_: Any) -> None:
        """The list of layers has changed."""
        if not self.is_closed:
            super().reset_choices()
            self.walking.say()

    def leave(self) -> None:
        """The window is closed; what is left of it must not answer events any more."""
        self.is_closed = True
        if self.job is not None:
            self.job.stop.set()
            self.job = None
        self.timer.stop()
        self.walking.leave()

    def _walk(self, layer: Any) -> None:
        self.walking.tree.reset_choices()
        self.walking.tree.value = layer
        self.walking.go(())

    def _lock(self, words: str) -> None:
        is_busy = self.job is not None
        self.predicting.enabled = self.walking.enabled = not is_busy
        self.button.text, self.button.enabled = "Cancel" if is_busy else "Predict", True
        self.bar.visible, self.status.value = is_busy, words
        self.timer.start(50) if is_busy else self.timer.stop()
        self._tick()

    def _tick(self) -> None:
        """The bar goes to and fro until the number of tiles is known."""
        if self.job is not None:
            self.bar.max, self.bar.value = self.job.total, min(self.job.done, self.job.total)

    def _end(self, ended: Job, then: Callable[[Any], str], result: Any) -> None:
        if self.job is not ended:  # the window is gone
            return
        self.job = None
        self._lock(result if isinstance(result, str) else "")
        self.walking.say()
        if not isinstance(result, str):
            self.status.value = then(result)


class Farewell(QObject):
    """Calls once when a window is taken out of napari's; napari itself tells nobody."""

    def __init__(self, window: Any, call: Callable[[], None]) -> None:
        super().__init__(window)
        self.call = call
        window.installEventFilter(self)

    def eventFilter(self, a0: Any, a1: Any) -> bool:  # noqa: N802
        if a1.type() == QEvent.Type.ParentChange and a0.parent() is None:
            a0.removeEventFilter(self)
            self.call()
        return False


def is_input(layer: Any) -> bool:
    """Whether a layer may be predicted: images, but not those of trees."""
    return isinstance(layer, Image) and not {TREE, NODE} & layer.metadata.keys()


def _work(function: Callable[[Job], Any], current: Job) -> Any:
    """In the thread: a result, or in words why there is none."""
    with suppress(Stopped):
        try:
            return function(current)
        except Exception as error:
            if words := words_for(error):
                return words
            raise
    return "Cancelled"
