"""Two at once: one writes, the other is told who; and nobody who was killed is in the way."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from posterior_trees_paper.baselines.spec import read_baseline
from posterior_trees_paper.baselines.train import fit_baseline

from posterior_trees import cli
from posterior_trees.errors import RunError
from posterior_trees.lock import HOLDER, LOCK, hold
from posterior_trees.training.trainer import fit

HOLD = """
import sys, time
from posterior_trees.lock import hold
with hold(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path: Path):
    """A process that writes into the folder `run`."""
    command = [sys.executable, "-c", HOLD, str(tmp_path / "run")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def test_the_second_is_told_who_writes_and_since_when(holder, tmp_path: Path) -> None:
    today = time.strftime("%Y-%m-%d")
    with pytest.raises(RunError, match=rf"process {holder.pid}, since ..:..:.. on {today}"):
        hold(tmp_path / "run").__enter__()
    assert json.loads((tmp_path / "run" / HOLDER).read_text())["pid"] == holder.pid


def test_a_holder_that_was_killed_is_not_in_the_way(holder, tmp_path: Path) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with hold(tmp_path / "run"):
        assert json.loads((tmp_path / "run" / HOLDER).read_text())["pid"] == os.getpid()
    assert [file.name for file in (tmp_path / "run").iterdir()] == [LOCK]


def test_a_thread_may_hold_what_it_holds_and_another_may_not(tmp_path: Path) -> None:
    problems = []

    def other() -> None:
        try:
            hold(tmp_path / "run").__enter__()
        except RunError as error:
            problems.append(str(error))

    with hold(tmp_path / "run"):
        with hold(tmp_path / "run" / ".." / "run"):
            pass
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert f"process {os.getpid()}" in problems[0]
    assert not (tmp_path / "run").exists()  # it was made here, and nothing came of it


def test_of_processes_that_train_together_the_first_holds(holder, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    with hold(tmp_path / "run"):
        assert not holder.poll()


def test_what_was_there_stays(tmp_path: Path) -> None:
    with hold(tmp_path / "new" / "run"):
        (tmp_path / "new" / "run" / "state").write_text("")
    assert {file.name for file in (tmp_path / "new" / "run").iterdir()} == {LOCK, "state"}
    (tmp_path / "old").mkdir()
    with hold(tmp_path / "old"):
        pass
    assert (tmp_path / "old").is_dir()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RunError, match=r"cannot make the folder .*file.*choose another"):
        hold(tmp_path / "file").__enter__()


BASELINE = """
task = "blobs"
[data]
name = "blobs"
kind = "idx"
channels = 1
split = "files"
[measurement]
kind = "inpaint"
rows = [0, 4]
columns = [0, 7]
of = [8, 8]
[baseline]
kind = "prior"
"""


@pytest.mark.parametrize("trains", [fit, fit_baseline])
def test_nobody_trains_where_another_does(trains, holder, tmp_path, recipe) -> None:
    """And nothing is read or built before that is known."""
    (tmp_path / "prior.toml").write_text(BASELINE)
    what = [recipe()] if trains is fit else read_baseline(tmp_path / "prior.toml")
    with pytest.raises(RunError, match=f"process {holder.pid}"):
        trains(*what, tmp_path / "run", data="nowhere")


@pytest.mark.parametrize(
    "line",
    [
        "train FILE --out RUN",
        "demo --out RUN",
        "toy --out RUN",
        "baseline train FILE --out RUN",
        "baseline sample FILE --out RUN",
        "study FILE --out RUN",
        "compare FILE --out RUN",
        "compare FILE --inputs RUN",
        "reproduce FILE --out RUN",
        "data --data RUN --edges shoes128",
    ],
)
def test_every_command_that_fills_a_folder_asks_first(line, holder, tmp_path, capsys) -> None:
    (tmp_path / "file.toml").write_text("")
    words = {"RUN": str(tmp_path / "run"), "FILE": str(tmp_path / "file.toml")}
    with pytest.raises(SystemExit) as stop:
        cli.main([words.get(word, word) for word in line.split()])
    assert stop.value.code == 1
    assert f"is being written by process {holder.pid}" in capsys.readouterr().err


def test_a_run_of_another_recipe_is_refused_before_anything_is_read_or_built(
    tmp_path, recipe, blobs, blob_folder, capsys
) -> None:
    fit(recipe("training.epochs=1"), tmp_path / "run", images=(blobs(16), blobs(8)))
    start = time.monotonic()
    with pytest.raises(SystemExit):
        cli.main(["train", str(blob_folder / "blobs.toml"), "--out", str(tmp_path / "run"),
                  "--data", "nowhere", "--set", "tree.depth=9"])  # fmt: skip
    assert "tree.depth: 1 → 9" in capsys.readouterr().err
    with pytest.raises(RunError, match=r"tree.depth: 1 → 9"):
        fit(recipe("tree.depth=9"), tmp_path / "run", data="nowhere")
    assert time.monotonic() - start < 2
