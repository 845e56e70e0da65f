"""Items are done by one process, several or a cluster, whatever becomes of the processes."""

import functools
import os
import signal
import time
from pathlib import Path

import pytest
import torch

from posterior_trees.engine import MOST_DEATHS, Engine, make_engine
from posterior_trees.errors import InputError


def add_up(size: int) -> tuple[float, int, int]:
    """A sum whose last bits depend on threads, the threads there are, and who did it."""
    values = torch.rand(size, generator=torch.Generator().manual_seed(size))
    return (values @ values).item(), torch.get_num_threads(), os.getpid()


def refuse(number: int) -> int:
    if number == 2:
        raise InputError("2 is refused")
    return number // (number - 3)


def die(folder: Path, number: int) -> int:
    """Number 1 ends its process each time, number 2 the first time."""
    mark = folder / f"{number}-{time.monotonic_ns()}"
    mark.touch()
    if number == 1 or (number == 2 and len(list(folder.glob("2-*"))) == 1):
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.fixture(scope="module")
def dask() -> Engine:
    engine = make_engine("dask", 2)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def local() -> Engine:
    engine = make_engine("local", 2)
    yield engine
    engine.close()


@pytest.fixture(params=["local", "dask"])
def engine(request) -> Engine:
    return request.getfixturevalue(request.param)


def test_engines_do_the_same_with_one_thread_each(engine: Engine) -> None:
    sizes = [2**k + 1 for k in range(4, 18)]
    here = {o.item: o.value for o in make_engine("local", 1).run(add_up, sizes)}
    there = {o.item: o.value for o in engine.run(add_up, sizes)}
    assert {n: v[:2] for n, v in there.items()} == {n: v[:2] for n, v in here.items()}
    assert all(v[1] == 1 for v in there.values())
    assert os.getpid() not in {v[2] for v in there.values()}


def test_errors_are_outcomes_of_their_items(engine: Engine) -> None:
    for each in (make_engine("local", 1), engine):
        found = {o.item: o for o in each.run(refuse, range(5))}
        assert [found[n].value for n in (0, 1, 4)] == [0, -1, 4]
        assert isinstance(found[2].error, InputError)
        assert isinstance(found[3].error, ZeroDivisionError)
    assert "refuse" in found[3].error.__notes__[0]


class TwoWordsError(Exception):
    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")


def send_oddly(number: int) -> object:
    if number == 1:
        raise TwoWordsError("not", "readable")  # again: it takes two words
    return (lambda: number) if number == 2 else number


def test_what_cannot_be_sent_is_told_in_words_and_the_others_are_done(engine: Engine) -> None:
    found = {o.item: o for o in engine.run(send_oddly, range(4))}
    assert [found[n].value for n in (0, 3)] == [0, 3]
    assert str(found[1].error) == "TwoWordsError: not readable"
    assert "lambda" in str(found[2].error)


def test_who_ends_its_worker_is_given_up_and_the_others_are_done(
    engine: Engine, tmp_path: Path
) -> None:
    found = {o.item: o for o in engine.run(functools.partial(die, tmp_path), range(6))}
    assert str(found.pop(1).error) == "ended its worker 3 times (out of memory?)"
    assert {n: o.value for n, o in found.items()} == {n: n for n in (0, 2, 3, 4, 5)}
    assert len(list(tmp_path.glob("1-*"))) >= MOST_DEATHS
