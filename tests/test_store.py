"""The store: whole files or none, through full disks and kills, and damaged ones are named."""

import errno
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from posterior_trees import store
from posterior_trees.errors import StoreError


def some_tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "weight": torch.randn(3, 4, generator=generator),
        "half": torch.randn(5, generator=generator).bfloat16(),
        "wide": torch.randn(2, generator=generator, dtype=torch.float64),
        "step": torch.tensor(7.0),
        "count": torch.arange(3),
        "mask": torch.tensor([True, False]),
        "none": torch.empty(0, 3),
    }


def test_tensors_and_facts_come_back_bit_for_bit(tmp_path):
    facts = {"a": [1, 2.5, None, True, "ü"], "b": {"c": 0.1 + 0.2}}
    store.write(tmp_path / "f", some_tensors(), facts)
    tensors, found = store.read(tmp_path / "f")
    assert found == store.read_facts(tmp_path / "f") == facts
    assert tensors.keys() == some_tensors().keys()
    for name, tensor in some_tensors().items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name], tensor)


def test_shared_and_strided_tensors_are_written_apart(tmp_path):
    """Tied weights share memory; a transpose is not contiguous."""
    weight = torch.arange(6.0).reshape(2, 3)
    store.write(tmp_path / "f", {"a": weight, "b": weight, "t": weight.T}, {})
    tensors, _ = store.read(tmp_path / "f")
    assert torch.equal(tensors["a"], tensors["b"])
    assert torch.equal(tensors["t"], weight.T)


def test_a_write_replaces_the_file_and_leaves_nothing_else(tmp_path):
    for number in range(3):
        store.write(tmp_path / "f", {"x": torch.tensor(number)}, {})
    assert [p.name for p in tmp_path.iterdir()] == ["f"]
    assert store.read(tmp_path / "f")[0]["x"] == 2


class FullDisk:
    """A stream that takes a few bytes and then has no space left."""

    def __init__(self, stream) -> None:
        self.stream = stream

    def __enter__(self):
        return self

    def __exit__(self, *exception: object) -> None:
        self.stream.close()

    def write(self, content: bytes) -> int:
        self.stream.write(content[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def no_space(*_args: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("moment", ["open", "write", "flush", "rename"])
def test_a_full_disk_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch, moment):
    file = tmp_path / "state.safetensors"
    store.write(file, {"x": torch.tensor(1)}, {"old": True})
    if moment == "open":
        monkeypatch.setattr(Path, "open", no_space)
    elif moment == "write":
        real = Path.open
        monkeypatch.setattr(Path, "open", lambda path, mode: FullDisk(real(path, mode)))
    else:
        monkeypatch.setattr(store.os, {"flush": "fsync", "rename": "replace"}[moment], no_space)
    with pytest.raises(
        StoreError, match=r"could not write .*state\.safetensors.*No space left"
    ) as e:
        store.write(file, {"x": torch.tensor(2)}, {"old": False})
    monkeypatch.undo()
    assert "untouched" in str(e.value)
    assert "Free some space" in str(e.value)
    assert [p.name for p in tmp_path.iterdir()] == ["state.safetensors"]
    tensors, facts = store.read(file)
    assert (tensors["x"].item(), facts) == (1, {"old": True})


def test_a_kill_in_the_middle_of_a_write_leaves_the_old_file(tmp_path):
    """A real SIGKILL after half of the bytes: only a .part file, which no reader looks at."""
    file = tmp_path / "state.safetensors"
    store.write(file, {"x": torch.tensor(1)}, {"old": True})
    program = (
        "import os, signal\n"
        "from pathlib import Path\n"
        "from posterior_trees import store\n"
        "class Half:\n"
        "    def __init__(self, path, mode): self.fd = os.open(path, os.O_WRONLY | os.O_CREAT)\n"
        "    def __enter__(self): return self\n"
        "    def __exit__(self, *exception): pass\n"
        "    def write(self, content):\n"
        "        os.write(self.fd, content[: len(content) // 2])\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "Path.open = lambda path, mode: Half(path, mode)\n"
        f"store.write_bytes(Path({str(file)!r}), b'x' * 100)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False)
    assert done.returncode == -9
    assert store.read(file)[1] == {"old": True}
    left = [p for p in tmp_path.iterdir() if p != file]
    assert [p.suffix for p in left] == [".part"]
    assert left[0].stat().st_size == 50


def test_json_holds_what_every_reader_takes(tmp_path):
    file = tmp_path / "new" / "f.json"
    store.write_json(file, {"a": [1.5, math.inf, (math.nan, 2)], "b": {"c": -math.inf, "d": "NaN"}})
    read = json.loads(file.read_text(), parse_constant=pytest.fail)
    assert read == {"a": [1.5, None, [None, 2]], "b": {"c": None, "d": "NaN"}}


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(StoreError, match=r"No such file or directory.*There is no folder .*gone"):
        store.write(tmp_path / "gone" / "f", {}, {})


@pytest.mark.parametrize("keep", [0, 1, 7, 50, -1])
def test_a_truncated_file_is_named(tmp_path, keep):
    store.write(tmp_path / "f", some_tensors(), {"a": 1})
    content = (tmp_path / "f").read_bytes()
    (tmp_path / "f").write_bytes(content[:keep])
    for read in (store.read, store.read_facts):
        with pytest.raises(StoreError, match=re.escape(f"{tmp_path / 'f'} is damaged or not a")):
            read(tmp_path / "f")


def test_foreign_files_are_named(tmp_path):
    save_file({"x": torch.zeros(2)}, tmp_path / "foreign")
    with pytest.raises(StoreError, match="not one of posterior-trees"):
        store.read(tmp_path / "foreign")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n" * 100)
    with pytest.raises(StoreError, match="damaged or not a safetensors file"):
        store.read(tmp_path / "picture.png")
    with pytest.raises(StoreError, match="there is no file"):
        store.read(tmp_path / "gone")


def test_a_nested_state_survives_flattening():
    state = {
        "step": 3,
        "best": None,
        "network": {"a.weight": torch.ones(2), "a.bias": torch.zeros(1)},
        "optimizer": {0: {"step": torch.tensor(1.0), "none": None}, 1: {}},
        "empty": {},
        "list": [1, [2.5, "x"]],
    }
    tensors, facts = store.flatten(state)
    assert set(tensors) == {"network/a.weight", "network/a.bias", "optimizer/0/step"}
    json.dumps(facts)
    back = store.unflatten(tensors, json.loads(json.dumps(facts)))
    assert back["network"].keys() == state["network"].keys()
    assert back["optimizer"]["0"]["step"] == 1.0
    assert back["optimizer"]["1"] == {}
    assert back["optimizer"]["0"]["none"] is None
    assert (back["step"], back["best"], back["empty"], back["list"]) == (
        3,
        None,
        {},
        [1, [2.5, "x"]],
    )


def test_flattening_keeps_numbers_exactly():
    numbers = [0.1, 1e-300, 3.0, 2**53, 1 / 3]
    _, facts = store.flatten({"numbers": numbers})
    assert store.unflatten({}, json.loads(json.dumps(facts)))["numbers"] == numbers


def test_a_file_can_be_read_by_others(tmp_path):
    """Temporary files are their owner's alone; a model in a shared folder is not."""
    store.write(tmp_path / "f", {"x": torch.tensor(1)}, {})
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o644


def test_a_file_written_by_others_is_whole_or_as_it_was(tmp_path):
    file = tmp_path / "figure.png"
    file.write_text("old")

    def interrupted() -> None:
        with store.whole(file) as part:
            part.write_text("ne")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [path.name for path in tmp_path.iterdir()] == ["figure.png"]
    assert file.read_text() == "old"
    with store.whole(file) as part:
        assert part.suffix == ".png"
        part.write_text("new")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["new"]


def test_what_a_kill_leaves_of_a_file_is_hidden(tmp_path, monkeypatch):
    seen = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: (seen.append(str(a)), replace(a, b)))
    store.write_bytes(tmp_path / "table.json", b"{}")
    assert os.path.basename(seen[0]).startswith(".table.json.")
    assert seen[0].endswith(".part")


def test_a_number_cut_from_a_row_has_a_checksum():
    """It counts as contiguous, and yet torch refuses to see its bytes."""
    row = torch.arange(6, dtype=torch.float64)
    for cut in (row[2:3], row[::3][:1], row[1::4][1:], row.reshape(2, 3)[1:, 2:]):
        assert store.checksum("x", cut) == store.checksum("x", cut.clone())
