"""Work on many items by one process, by several, or by a cluster of machines: `make_engine`.

    for outcome in engine.run(function, items): ...
    engine.close()

Outcomes come as items end, in any order; who stops listening closes the generator, which stops the
work. `function` is pickled once, and a process that has it
keeps it with what it holds by then (a network, open files); what it returns or raises comes back in
the outcome. An item whose process dies (killed, out of memory) is done again by another,
and given up after `MOST_DEATHS`: forever would be an endless loop. So `function` must be one that
can be done twice.

Every process works with `threads` threads: other numbers of them add floats in another order, and
give other bytes, while the number of processes changes none.
"""

import logging
import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from posterior_trees.errors import RunError, need

MOST_DEATHS = 3
GRACE = 5.0
"""Seconds a process may take to tidy up when it is asked to stop."""
SPAWN = multiprocessing.get_context("spawn")
device: str | None = None
"""Of this process, where each has its own."""


class WorkerError(RunError):
    """Its item ended so many workers."""

    def __init__(self, times: int = MOST_DEATHS) -> None:
        super().__init__(f"ended its worker {times} times (out of memory?)")


class Outcome(NamedTuple):
    """What became of an item: its value, or the error that stopped it."""

    item: Any
    value: Any = None
    error: Exception | None = None
    seconds: float = 0.0


Outcomes = Generator[Outcome, None, None]


@runtime_checkable
class Engine(Protocol):
    def run(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Outcomes: ...
    def close(self) -> None: ...


def make_engine(
    name: str = "local", workers: int = 1, threads: int | None = 1, *, devices: Sequence[str] = (),
    scheduler: str | None = None,
) -> Engine:  # fmt: skip
    """`local` processes, or those of `dask`, whose `scheduler` is an address or a file."""
    if name == "dask":
        return DaskEngine(workers, threads or 1, scheduler)
    if workers == 1:
        return OneProcess(threads)
    return Processes(workers, threads or 1, devices)


class OneProcess:
    """This one, with the threads that it has where none are said."""

    def __init__(self, threads: int | None = None) -> None:
        self.threads = threads

    def run(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Outcomes:
        return (attempt(function, item, self.threads) for item in items)

    def close(self) -> None:
        pass


def attempt(function: Callable[[Any], Any], item: Any, threads: int | None) -> Outcome:
    """One item, by this process."""
    import torch

    if threads and torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    start = time.monotonic()
    try:
        return Outcome(item, function(item), None, time.monotonic() - start)
    except Exception as error:
        return Outcome(item, None, error, time.monotonic() - start)


_kept: tuple[bytes, Any] = b"", None
"""The function that another process sent last."""


def attempt_sent(pickled: bytes, item: Any, threads: int) -> Outcome:
    """One item of another process; a traceback can only go there as a note."""
    global _kept
    if _kept[0] != pickled:
        _kept = pickled, pickle.loads(pickled)
    outcome = attempt(_kept[1], item, threads)
    if outcome.error is not None:
        outcome.error.add_note("".join(traceback.format_exception(outcome.error)))
    try:
        pickle.loads(pickle.dumps(outcome[1:]))
    except Exception as error:  # of a kind that cannot be sent
        found = outcome.error or error
        told = RunError(f"{type(found).__name__}: {found}")
        told.add_note("".join(traceback.format_exception(found)))
        return outcome._replace(value=None, error=told)
    return outcome


@contextmanager
def _deaf() -> Generator[None, None, None]:
    """Processes that are made meanwhile ignore Ctrl-C: it is for this one, which tells them."""
    before = None
    with suppress(ValueError):  # only a main thread may
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)


class Processes:
    """Processes of this machine, each with one item at a time: who dies says whose fault it is.
    (`ProcessPoolExecutor` ends all of its processes when one dies, and those of a killed parent
    wait forever.)"""

    def __init__(self, workers: int, threads: int = 1, devices: Sequence[str] = ()) -> None:
        self.threads, self.idle = threads, list[_Worker]()
        self.places = [devices[i % len(devices)] if devices else None for i in range(workers)]

    def run(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Outcomes:
        waiting, deaths, pickled = deque(enumerate(items)), Counter[int](), pickle.dumps(function)
        busy: dict[Any, tuple[_Worker, int, Any]] = {}
        try:
            while waiting or busy:
                while waiting and (worker := self._free()):
                    if worker.give(pickled, waiting[0][1]):
                        busy[worker.pipe] = worker, *waiting.popleft()
                    else:  # it died of itself, between two items
                        self._end(worker)
                for pipe in wait(list(busy)):
                    worker, number, item = busy[pipe]
                    try:
                        outcome = worker.hear()
                    except (EOFError, OSError):
                        del busy[pipe]
                        self._end(worker)
                        deaths[number] += 1
                        if deaths[number] < MOST_DEATHS:
                            waiting.append((number, item))
                        else:
                            yield Outcome(item, None, WorkerError())
                        continue
                    if outcome is not None:
                        del busy[pipe]
                        self.idle.append(worker)
                        yield outcome
        finally:
            self._stop([worker for worker, _, _ in busy.values()])

    def close(self) -> None:
        self._stop(self.idle)
        self.idle = []

    def _free(self) -> "_Worker | None":
        if self.idle:
            return self.idle.pop()
        return _Worker(self.threads, self.places.pop(0)) if self.places else None

    def _end(self, worker: "_Worker") -> None:
        worker.end()
        self.places.append(worker.device)

    def _stop(self, workers: "Sequence[_Worker]") -> None:
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            self._end(worker)


class _Worker:
    """One process, which has the other end of `pipe`."""

    def __init__(self, threads: int, device: str | None) -> None:
        self.device, self.is_ready = device, False
        self.pipe, theirs = SPAWN.Pipe()
        self.process = SPAWN.Process(target=_serve, args=(theirs, threads, device), daemon=True)
        before = os.environ.get("OMP_NUM_THREADS")
        os.environ["OMP_NUM_THREADS"] = str(threads)  # of NumPy, which reads it once
        try:
            with _deaf():
                self.process.start()
        finally:
            theirs.close()
            os.environ.pop("OMP_NUM_THREADS")
            os.environ |= {} if before is None else {"OMP_NUM_THREADS": before}

    def give(self, pickled: bytes, item: Any) -> bool:
        """Whether it is there to take an item."""
        try:
            self.pipe.send((pickled, item))
        except OSError:
            if not self.is_ready:
                raise self._early() from None
            return False
        return True

    def hear(self) -> Outcome | None:
        """What became of its item; None while it only says that it is there."""
        try:
            said = self.pipe.recv()
        except (EOFError, OSError):
            if self.is_ready:
                raise
            raise self._early() from None
        self.is_ready = True
        return said

    def _early(self) -> RunError:
        self.process.join(GRACE)
        return RunError(
            f"a worker process ended as it started (exit code {self.process.exitcode}): take "
            "fewer --workers; a script of your own starts its work below "
            "`if __name__ == '__main__':`"
        )

    def end(self) -> None:
        self.process.join(GRACE if self.process.exitcode is None else 0)
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _serve(pipe: Any, threads: int, own_device: str | None) -> None:
    """Items, until there are no more or the parent is gone."""
    global device
    device = own_device
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # `finally` tidies up
    with suppress(EOFError, OSError):
        pipe.send(None)
        while True:
            pipe.send(attempt_sent(*pipe.recv(), threads))


class DaskEngine:
    """Workers of Dask, on this machine or wherever their scheduler has them. Of items that were on
    a worker as it died one may have been the reason: each is tried again, alone."""

    def __init__(self, workers: int, threads: int = 1, scheduler: str | None = None) -> None:
        find = partial(need, purpose="--engine dask", extra="dask")
        self.dask, self.distributed = find("dask"), find("distributed")
        self.workers, self.threads, self.scheduler = workers, threads, scheduler
        self._open()

    def _open(self) -> None:
        scheduler, self.cluster = self.scheduler, None
        is_file = scheduler is not None and Path(scheduler).is_file()
        at = {"scheduler_file" if is_file else "address": scheduler}
        with self.dask.config.set({"distributed.scheduler.allowed-failures": 0}):
            if scheduler is None:
                with _deaf():
                    at["address"] = self.cluster = self.distributed.LocalCluster(
                        n_workers=self.workers, threads_per_worker=1, dashboard_address=None,
                        silence_logs=logging.CRITICAL,
                    )  # fmt: skip
            try:
                self.client = self.distributed.Client(**at)
            except OSError as error:
                raise RunError(f"--scheduler {scheduler} does not answer ({error})") from error

    def run(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Outcomes:
        suspects = []
        for item, outcome, deaths in self._finished(function, list(items)):
            if outcome is None:
                suspects.append((item, deaths))
            else:
                yield outcome
        for suspect, deaths in suspects:
            outcome = None
            while outcome is None:
                ((_, outcome, more),) = self._finished(function, [suspect])
                deaths += more
                if outcome is None and deaths >= MOST_DEATHS:
                    outcome = Outcome(suspect, None, WorkerError())
            yield outcome

    def _finished(
        self, function: Callable[[Any], Any], items: list[Any]
    ) -> Iterator[tuple[Any, Outcome | None, int]]:
        """Items with what became of them; None, and how often, where workers died with them."""
        if self.client.status == "closed":
            self._open()
        send = partial(attempt_sent, pickle.dumps(function), threads=self.threads)
        item_of = dict(zip(self.client.map(send, items, pure=False), items, strict=True))
        try:
            for future in self.distributed.as_completed(list(item_of)):
                item, found, deaths = item_of.pop(future), None, 0
                try:
                    found = future.result()
                except self.distributed.KilledWorker as error:
                    deaths = error.allowed_failures + 1
                future.release()  # else it is done again when its worker dies later
                yield item, found, deaths
        finally:
            if item_of:
                self.client.cancel(list(item_of))
                if self.cluster is not None:  # whoever is at work knows nothing of it; to
                    self.close()  # restart workers waits for ever if one was just starting

    def close(self) -> None:
        self.client.close()
        if self.cluster is not None:
            self.cluster.close()
