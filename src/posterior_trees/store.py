"""Tensors and a few facts about them in one safetensors file, written atomically; never pickle.

The header keeps a CRC-32 of the facts and of every tensor with its name, type and shape: otherwise
flipped bits would be believed. Files from before there were checksums load without.
"""

import json
import math
import os
import threading
import zlib
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from posterior_trees.errors import StoreError
from posterior_trees.schema import SchemaError, parse_json

KEY, SUMS = "posterior_trees", "checksums"
FACTS = ""
"""The name of the facts' checksum among those of the tensors."""


def write(file: str | PathLike[str], tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Write to a temporary name, flush to disk, rename: a reader sees the old file or the new one.
    If the disk is full the old file stays and the temporary one goes."""
    # Copies, because safetensors refuses tensors that share memory, as tied weights do.
    flat = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    text = json.dumps(facts)
    sums = {name: checksum(name, tensor) for name, tensor in flat.items()}
    sums[FACTS] = zlib.crc32(text.encode())
    write_bytes(Path(file), _ordered(save(flat, metadata={KEY: text, SUMS: json.dumps(sums)})))


def _ordered(content: bytes) -> bytes:
    """The same with its header's metadata in order: safetensors writes them as chance has it."""
    size = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:size])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[size:]


def checksum(name: str, tensor: Tensor) -> int:
    """CRC-32 of a tensor on the CPU and of what the header says about it."""
    header = f"{name} {tensor.dtype} {tuple(tensor.shape)}"
    return zlib.crc32(bytes_of(tensor), zlib.crc32(header.encode()))


def bytes_of(tensor: Tensor) -> memoryview:
    """What a tensor on the CPU stores. (A single number may keep the stride of what it was cut
    from, and then counts as contiguous, but not where another type is to be seen in it.)"""
    flat = tensor.contiguous().reshape(-1)
    flat = flat.clone(memory_format=torch.contiguous_format) if flat.numel() == 1 else flat
    return flat.view(torch.uint8).numpy().data


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file by `content`, whole or not at all."""
    with whole(path, ending="") as part, part.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


@contextmanager
def whole(file: str | PathLike[str], ending: str | None = None) -> Generator[Path, None, None]:
    """A hidden name beside `file` to write to, which then becomes `file`: that one is never half
    there, whatever ends the work. The name ends as that of `file`, or in `ending`."""
    path = Path(file)
    name = f".{path.name}.{os.getpid()}-{threading.get_ident()}.part"
    part = path.with_name(name + (path.suffix if ending is None else ending))
    try:
        yield part
        os.replace(part, path)
    except OSError as error:
        fix = "Free some space, or choose another folder"
        if not path.parent.is_dir():
            fix = f"There is no folder {path.parent}: make it, or choose another"
        raise StoreError(
            f"could not write {path} ({error.strerror or error}); "
            f"what was there before is untouched. {fix}"
        ) from error
    finally:
        part.unlink(missing_ok=True)


def write_json(file: str | PathLike[str], content: Any) -> None:
    """Replace a file by JSON that every reader takes: NaN and infinities, which it cannot hold, are
    null. The folder is made if it is not there."""
    write_bytes(make_folder_of(file), to_json(content).encode())


def to_json(content: Any, indent: int | None = 1) -> str:
    """The text of such a file."""
    return json.dumps(_finite(content), indent=indent, allow_nan=False) + "\n"


def make_folder_of(file: str | PathLike[str]) -> Path:
    """The file's path, in a folder that is there now."""
    make_folder(Path(file).parent)
    return Path(file)


def make_folder(folder: str | PathLike[str]) -> Path:
    """The folder, which is there now."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"cannot make the folder {folder} ({error.strerror or error}): choose another"
        ) from error
    return Path(folder)


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def read(file: str | PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors (on the CPU) and the facts of a file."""
    path = Path(file)
    with _opened(path) as stored:
        facts, sums = _read_header(path, stored.metadata())
        tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    if sums is not None:
        wrong = [n for n, tensor in tensors.items() if sums.get(n) != checksum(n, tensor)]
        if wrong := sorted({*wrong, *(sums.keys() - tensors.keys() - {FACTS})}):
            raise _damaged(path, f"{wrong[0]!r} is not what was written", len(wrong) - 1)
    return tensors, facts


def read_facts(file: str | PathLike[str]) -> dict[str, Any]:
    """Only the facts, without loading any tensor."""
    return read_shapes(file)[1]


def read_shapes(file: str | PathLike[str]) -> tuple[dict[str, tuple[int, ...]], dict[str, Any]]:
    """The shapes of the tensors and the facts, without loading any tensor."""
    path = Path(file)
    with _opened(path) as stored:
        shapes = {n: tuple(stored.get_slice(n).get_shape()) for n in stored.keys()}  # noqa: SIM118
        return shapes, _read_header(path, stored.metadata())[0]


@contextmanager
def _opened(path: Path) -> Generator[Any, None, None]:
    """The open file; what goes wrong inside safetensors names it."""
    if not path.is_file():
        raise StoreError(f"there is no file {path}")
    try:
        try:
            stored = safe_open(path, framework="pt")
        except RuntimeError:  # a running training has just replaced the file: take the new one
            stored = safe_open(path, framework="pt")
        with stored:
            yield stored
    except StoreError:
        raise
    except (SafetensorError, OSError, RuntimeError, ValueError, KeyError) as error:
        raise StoreError(
            f"{path} is damaged or not a safetensors file ({error}); copy or train it again"
        ) from error


def _read_header(
    path: Path, header: Mapping[str, str] | None
) -> tuple[dict[str, Any], dict[str, int] | None]:
    """The facts, and the checksums of a file that has them."""
    if KEY not in (header := header or {}):
        raise StoreError(f"{path} is a safetensors file, but not one of posterior-trees")
    try:
        facts = parse_json(header[KEY], dict[str, Any], "its facts")
        sums = parse_json(header[SUMS], dict[str, int], "its checksums") if SUMS in header else None
    except SchemaError as error:
        raise _damaged(path, str(error)) from None
    if sums is not None and sums.get(FACTS) != zlib.crc32(header[KEY].encode()):
        raise _damaged(path, "its facts are not what was written")
    return facts, sums


def _damaged(path: Path, what: str, others: int = 0) -> StoreError:
    more = f", nor are {others} more" if others else ""
    return StoreError(f"{path} is damaged: {what}{more}; copy or train it again")


def flatten(nested: dict[Any, Any], prefix: str = "") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Split a nested state into tensors by slashed name and everything else as plain JSON."""
    tensors: dict[str, Tensor] = {}
    facts: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, Tensor):
            tensors[f"{prefix}{key}"] = value
        elif isinstance(value, dict):
            inner, plain = flatten(value, f"{prefix}{key}/")
            tensors |= inner
            facts[str(key)] = plain
        else:
            facts[str(key)] = value
    return tensors, facts


def unflatten(tensors: dict[str, Tensor], facts: dict[str, Any]) -> dict[str, Any]:
    """Undo `flatten`; keys come back as strings."""
    nested = json.loads(json.dumps(facts))
    for name, tensor in tensors.items():
        *parents, last = name.split("/")
        place = nested
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise StoreError(f"the tensor {name!r} lies in {parent!r}, which is {place!r:.40}")
        place[last] = tensor
    return nested
