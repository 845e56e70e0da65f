"""A run's folder: recipe, state, log and pictures; killed at any moment, it can go on.

RUN/recipe.toml          the resolved recipe
RUN/state.safetensors    everything needed to continue exactly, in one file
RUN/best.safetensors     weights for inference
RUN/log.jsonl            one line per epoch, cut back to the state's step on resume
RUN/trees/*.png          trees of a few fixed images
"""

import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor

from posterior_trees import store
from posterior_trees.data import ImageSet, fingerprint
from posterior_trees.errors import RunError
from posterior_trees.recipe import Recipe, parse_resolved, write_recipe
from posterior_trees.schema import SchemaError, check

FREE_TO_CHANGE = {"training.save_seconds", "training.picture_every", "training.evaluation_batch",
                  "training.compile", "training.calibrate"}  # fmt: skip
"""Recipe keys that do not change what a run trains: a finished one can still be calibrated."""

STATE = {
    "step": int,
    "seconds": float,
    "best": float | None,
    "images": {"count": int, "names": str},
    "network": dict[str, Tensor],
    "model": dict[str, Tensor],
    "average": dict[str, Tensor],
}
"""What every state has, as far as it is known without a network."""


class Run:
    def __init__(self, folder: str | PathLike[str], recipe: Recipe, is_writer: bool = True) -> None:
        self.folder, self.recipe, self.is_writer = Path(folder), recipe, is_writer
        self.state_file = self.folder / "state.safetensors"
        self.model_file = self.folder / "best.safetensors"
        self.log_file = self.folder / "log.jsonl"
        recipe_file = self.folder / "recipe.toml"
        check_folder(self.folder, recipe)
        if is_writer:
            store.make_folder(self.folder / "trees")
            trees = (self.folder / "trees").glob(".*.part.*")
            for leftover in (*self.folder.glob("*.part"), *trees):  # of a save that was killed
                leftover.unlink(missing_ok=True)
            store.write_bytes(recipe_file, write_recipe(recipe).encode())

    def save(self, state: dict[str, Any]) -> None:
        if self.is_writer:
            tensors, facts = store.flatten(state)
            store.write(self.state_file, tensors, {"state": facts})

    def load(self, weights: str = "network") -> dict[str, Any] | None:
        """The last saved state, which keeps `weights` by that name, or None for a fresh run."""
        if not self.state_file.is_file():
            return None
        tensors, facts = store.read(self.state_file)
        if "state" not in facts:
            raise RunError(f"{self.state_file} is not the state of a run")
        try:
            check(facts, {"state": dict}, "its facts")
            state = store.unflatten(tensors, facts["state"])
            if "images" in state:
                check(state["images"], {}, "the state.images", required=("count", "names"))
            return check(state, STATE, "the state", required=("step", "seconds", weights))
        except ValueError as error:
            raise self._damaged(error) from error

    @contextmanager
    def taking_over(
        self, state: dict[str, Any], fresh: dict[str, Any]
    ) -> Generator[None, None, None]:
        """Load a state that must be like a fresh one; what does not fit names the file."""
        try:
            check_like(state, fresh, "the state")
            yield
        except (ValueError, TypeError, LookupError, RuntimeError, AttributeError) as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> RunError:
        why = f"it lacks {error}" if isinstance(error, KeyError) else error
        return RunError(
            f"{self.state_file} cannot be continued: {why}. Begin anew with another --out, or with "
            f"--from {self.folder}, which takes its best weights"
        )

    def check_images(self, state: dict[str, Any], train: ImageSet) -> None:
        """Refuse to go on with other training images than the state's (`describe_images`)."""
        known = state.get("images")
        if known and known["names"] != fingerprint(train.names):
            raise RunError(
                f"{self.folder} was begun with {known['count']} other training images (there are "
                f"{len(train)} now; files were added, removed or renamed): bring them back to "
                "continue it, or begin a new run with another --out"
            )

    def log(self, line: dict[str, Any]) -> None:
        if self.is_writer:
            with self.log_file.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(line) + "\n")

    def rewind(self, step: int) -> None:
        """Cut the log back to what the state knows; a half-written last line goes too."""
        if not self.is_writer or not self.log_file.is_file():
            return
        self.write_log([line for line in read_log(self.log_file) if line["step"] <= step])

    def write_log(self, lines: list[dict[str, Any]]) -> None:
        text = "".join(json.dumps(line) + "\n" for line in lines)
        store.write_bytes(self.log_file, text.encode())


def check_folder(folder: Path, recipe: Recipe) -> None:
    """Refuse a folder that holds a run of another recipe; reads nothing but that recipe."""
    file = folder / "recipe.toml"
    if not (file.is_file() and (folder / "state.safetensors").is_file()):
        return
    before, now = _keys(parse_resolved(file.read_text("utf-8"), str(file))), _keys(recipe)
    changed = [k for k in now if before[k] != now[k] and k not in FREE_TO_CHANGE]
    if changed:
        listed = ", ".join(f"{k}: {before[k]!r} → {now[k]!r}" for k in changed[:4])
        raise RunError(
            f"{folder} holds a run of another recipe ({listed}). Give the same recipe "
            "to continue it, or another --out folder for a new run, which `ptrees train … "
            f"--from {folder}` begins with these weights"
        )


def check_like(value: Any, fresh: Any, where: str) -> None:
    """Refuse a state whose parts are not of the kind and the shape of a fresh one's. What is new
    since, or came with the steps, is not compared."""
    if isinstance(fresh, dict):
        for key in check(value, dict, where).keys() & fresh.keys():
            check_like(value[key], fresh[key], f"{where}.{key}")
    elif isinstance(fresh, Tensor):
        if check(value, Tensor, where).shape != fresh.shape:
            shapes = tuple(value.shape), tuple(fresh.shape)
            raise SchemaError(f"{where} has the shape {shapes[0]}; it must be {shapes[1]}")
    else:
        check(value, float | None if fresh is None else type(fresh), where)


def describe_images(train: ImageSet) -> dict[str, Any]:
    """What a state keeps to know its training images by."""
    return {"count": len(train), "names": fingerprint(train.names)}


def read_log(file: str | PathLike[str]) -> list[dict[str, Any]]:
    """The complete lines of a log."""
    lines = []
    for text in Path(file).read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            break  # the run was killed while writing this one
    return lines


def _keys(recipe: Recipe) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for section, value in asdict(recipe).items():
        if isinstance(value, dict):
            flat |= {f"{section}.{key}": entry for key, entry in value.items()}
        else:
            flat[section] = value
    return flat
