"""A real napari on a screen of its own (Xvfb); where there is none tests skip, in CI they fail."""

import ctypes
import gc
import os
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import make_predictor

torch.set_num_threads(1)
LIBRARIES = [
    "libEGL.so.1", "libGL.so.1", "libdbus-1.so.3", "libfontconfig.so.1", "libglib-2.0.so.0",
    "libxkbcommon-x11.so.0", *(f"libxcb-{name}" for name in (
        "cursor.so.0", "icccm.so.4", "image.so.0", "keysyms.so.1", "render-util.so.0", "shape.so.0",
        "xinerama.so.0", "xkb.so.1")),
]  # fmt: skip
"""What Qt asks the system for; without one of them it ends the program."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "filterwarnings", "ignore::pydantic.PydanticDeprecatedSince20"
    )  # npe2's


def can_load(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


@pytest.fixture(scope="session")
def screen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A screen that nobody sees, and settings of napari that nobody has."""
    missing = [name for name in LIBRARIES if not can_load(name)]
    missing += [] if shutil.which("Xvfb") else ["Xvfb"]
    if missing:
        reason = f"no {', no '.join(missing)} on this machine (make screen installs them)"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    os.environ["NAPARI_CONFIG"] = str(tmp_path_factory.mktemp("napari") / "settings.yaml")
    os.environ["QT_QPA_PLATFORM"] = "xcb"
    reads, writes = os.pipe()
    command = ["Xvfb", "-displayfd", str(writes), "-screen", "0", "1500x1000x24"]
    server = subprocess.Popen(command, pass_fds=[writes], stderr=subprocess.DEVNULL)
    os.environ["DISPLAY"] = f":{os.read(reads, 9).decode().strip()}"
    yield
    server.terminate()
    server.wait()


@pytest.fixture
def headless() -> Any:
    """What a viewer knows, without a window."""
    from napari.components import ViewerModel
    from npe2 import PluginManager

    PluginManager.instance().discover()
    return ViewerModel()


@pytest.fixture
def viewer(screen: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A napari that may not complain; without a hook Qt would end the tests with the first error
    in a button."""
    import napari
    from napari.utils.notifications import notification_manager

    errors: list[str] = []
    hook = lambda *error: errors.append("".join(traceback.format_exception(*error)))  # noqa: E731
    monkeypatch.setattr(sys, "excepthook", hook)
    notification_manager.records.clear()
    opened = napari.Viewer()
    yield opened
    opened.close()
    errors += [record.message for record in notification_manager.records]
    assert errors == [], "napari complained"


@pytest.fixture
def window(viewer: Any) -> Any:
    """The plugin's window, as its menu opens it."""
    opened = viewer.window.add_plugin_dock_widget("napari-posterior-trees")[1]
    gc.freeze()  # napari collects garbage whenever a layer is removed
    return opened


@pytest.fixture
def wait(screen: None) -> Callable[..., None]:
    """`wait(until)`: the window lives on until something is true."""
    from qtpy.QtWidgets import QApplication

    def wait(until: Callable[[], bool], seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not until():
            assert time.monotonic() < end, "nothing happened"
            QApplication.processEvents()
            time.sleep(0.005)

    return wait


@pytest.fixture
def take(viewer: Any, wait: Callable[..., None], tmp_path: Path) -> Callable[..., np.ndarray]:
    """`take()`: a picture of what is shown, grey in [0, 1]; kept where `$SCREENSHOTS` says."""

    def take(name: str = "", canvas_only: bool = True) -> np.ndarray:
        from PIL import Image

        end = time.monotonic() + 0.2
        wait(lambda: time.monotonic() > end)
        shown = viewer.screenshot(canvas_only=canvas_only, flash=False)[..., :3]
        if name and (folder := os.environ.get("SCREENSHOTS")):
            Image.fromarray(shown).save(Path(folder) / f"{name}.png")
        return shown.mean(axis=2) / 255

    return take


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the window predicts with in place of a trained model."""
    from napari_posterior_trees import job

    predictor = make_predictor()
    monkeypatch.setattr(job, "load_model", lambda *_: predictor)
    return predictor
