"""The picture of the window in the docs: python plugins/napari/screenshot.py FIELD [PICTURE]

FIELD is actin as the model `cells` takes it. On a computer without a screen, make one first:
Xvfb :7 -screen 0 1280x900x24 & DISPLAY=:7 python …
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image
from qtpy.QtWidgets import QApplication

SIZE = (1180, 760)


def wait(until: Callable[[], bool]) -> None:
    while not until():
        QApplication.processEvents()
        time.sleep(0.01)


def take(field: Path, picture: Path) -> None:
    """Predict, count, go to the likeliest branch, and draw the window."""
    import napari

    viewer = napari.Viewer()
    viewer.window.resize(*SIZE)
    viewer.add_image(np.asarray(Image.open(field).convert("L")), name="actin")
    _, window = viewer.window.add_plugin_dock_widget("napari-posterior-trees")
    walk = window.walking
    for button in (window.button, walk.nuclei):
        button.native.click()
        wait(lambda: window.job is None)
    probs = walk.root.metadata["posterior_tree"].probs[1][0]
    walk.branches[int(probs.argmax())].native.click()
    labels = viewer.layers["actin tree nuclei"]
    labels.contour, labels.opacity = 1, 1
    viewer.reset_view()
    end = time.monotonic() + 1
    wait(lambda: time.monotonic() > end)
    shown = viewer.screenshot(canvas_only=False, flash=False)[..., :3]
    Image.fromarray(shown).save(picture, quality=85)
    viewer.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:  # nobody's own settings
        os.environ["NAPARI_CONFIG"] = f"{folder}/settings.yaml"
        take(Path(sys.argv[1]), Path(sys.argv[2] if len(sys.argv) > 2 else "docs/napari.jpg"))
