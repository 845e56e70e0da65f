"""Progress for people: a bar in a terminal, plain lines elsewhere, and a way to stop."""

import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

Item = TypeVar("Item")
LINE_EVERY = 10.0
"""Seconds before the first line, and between lines, where a bar cannot be drawn."""


class Progress:
    """Follows a training run: a bar over its steps and one line per epoch. Where there is no
    terminal, some steps get a line too, each after twice the time of the one before: the first
    epoch can take long. What to do about a warning is said once; the log has it for every epoch.

    Asked to stop (Ctrl-C, SIGTERM) it ends the steps after the present one, so that the trainer
    can save, and `is_stopped`; asked once more, all ends at once. Of several processes one speaks.
    """

    def __init__(self, title: str, *, can_stop: bool = True, is_quiet: bool = False) -> None:
        self.title, self.console = title, Console(quiet=is_quiet)
        self.can_stop, self.is_asked, self.is_stopped = can_stop, False, False
        self.bar = _bar(self.console)
        self.advice: set[str] = set()

    def __enter__(self) -> "Progress":
        self.bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.bar.stop()

    def steps(self, steps: Iterator[int], first: int, total: int) -> Iterator[int]:
        if first:
            self.console.print(f"continuing at step {first} of {total}")
        task = self.bar.add_task(self.title, total=total, completed=first)
        start, due = time.monotonic(), LINE_EVERY
        with self._stopping():
            for step in steps:
                if self.is_asked:
                    self.is_stopped = True
                    return
                yield step
                self.bar.update(task, completed=step + 1)
                seconds = time.monotonic() - start
                if not self.console.is_terminal and seconds >= due:
                    due = 2 * seconds
                    text = f"{self.title}: step {step + 1} of {total}  ({seconds:.0f} s)"
                    self.console.print(text, highlight=False)

    @contextmanager
    def _stopping(self) -> Generator[None, None, None]:
        """Signals become a wish; only a main thread may say so."""
        is_main = threading.current_thread() is threading.main_thread()
        numbers = (signal.SIGINT, signal.SIGTERM) if self.can_stop and is_main else ()
        before = {number: signal.signal(number, self._ask) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _ask(self, number: int, _: object) -> None:
        if self.is_asked:
            raise KeyboardInterrupt
        self.is_asked = True
        self.console.print("stopping after this step (once more: at once)", highlight=False)

    def epoch(self, line: dict[str, Any]) -> None:
        text = f"epoch {line['epoch']:4d}  root mse {line['root_mse']:.5f}  nll {line['nll']:.3f}"
        text += f"  entropy {line['entropy']:.3f}  ε {line['epsilon']:.3g}  lr {line['lr']:.2g}"
        if "val_psnr" in line:
            psnr = " / ".join(f"{v:.2f}" for v in line["val_psnr"])
            nll = " / ".join(f"{v:.3f}" for v in line["val_nll"][1:])
            text += f"  | validation psnr {psnr}  nll {nll}"
        self.console.print(f"{text}  ({line['seconds']:.0f} s)", highlight=False)
        for warning in line.get("warnings", []):
            _, _, advice = warning.partition(": ")
            if advice not in self.advice:
                self.advice.add(advice)
                self.console.print(f"warning: {warning}", style="yellow", highlight=False,
                                   markup=False)  # fmt: skip


def track(title: str) -> Callable[[Sequence[Item]], Iterator[Item]]:
    """A wrapper for a loop that shows how far it is: a bar if it takes longer than a second, and
    where there is no terminal a line every `LINE_EVERY` seconds."""

    def watch(items: Sequence[Item]) -> Iterator[Item]:
        console = Console(stderr=True)
        start, bar, task = time.monotonic(), _bar(console), None
        said = start
        try:
            for number, item in enumerate(items):
                now = time.monotonic()
                if task is None and now - start > 1:
                    bar.start()
                    task = bar.add_task(title, total=len(items), completed=number)
                if not console.is_terminal and now - said > LINE_EVERY:
                    said = now
                    console.print(f"{title}: {number} of {len(items)}", highlight=False)
                yield item
                if task is not None:
                    bar.update(task, completed=number + 1)
        finally:
            bar.stop()

    return watch


def _bar(console: Console) -> Bar:
    return Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
