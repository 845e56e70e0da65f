"""A list of layers to choose from, in which a layer stays chosen when it is renamed."""

from collections.abc import Callable
from typing import Any

from magicgui.widgets import ComboBox


class LayerChoice(ComboBox):
    """Of the layers of a viewer those that `fits` says; None if there is none."""

    def __init__(self, viewer: Any, fits: Callable[[Any], bool], **options: Any) -> None:
        super().__init__(
            choices=lambda _: [layer for layer in viewer.layers if fits(layer)], **options
        )

    def reset_choices(self, *_: Any) -> None:
        before = self.value
        with self.changed.blocked():
            super().reset_choices()
            if before in self.choices:
                self.value = before
        if self.value is not before:
            self.changed.emit(self.value)
