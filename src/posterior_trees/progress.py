"""Progress for people: a bar in a terminal, plain lines elsewhere, and a way to stop."""

import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

from rich import progress as bars
from rich.console import Console
from rich.text import Text

LINE_EVERY = 10.0
"""Seconds before the first line, and between lines, where a bar cannot be drawn."""
FIRST_STEPS = 5
"""Steps after which a run says how long it takes, if that is more than a minute. The very first may
compile, and does not count."""


class Progress:
    """Follows a training run: a bar over its steps and one line per epoch, with the time of a step
    and what is left of the epoch (of `per_epoch` steps, if that is known) and of the run. Where
    there is no terminal, some steps get a line too, each after twice the time of the one before:
    the first epoch can take long. A warning's advice is said once; the log has it for every epoch.
    Asked to stop (Ctrl-C, SIGTERM) it ends the steps after the present one, so that the trainer can
    save, and `is_stopped`; asked once more, all ends at once. Of several processes one speaks."""

    def __init__(
        self, title: str, *, per_epoch: int = 0, can_stop: bool = True, is_quiet: bool = False
    ) -> None:
        self.title, self.per_epoch, self.console = title, per_epoch, Console(quiet=is_quiet)
        self.can_stop, self.is_asked, self.is_stopped = can_stop, False, False
        self.bar = _bar(self.console, bars.TextColumn("{task.fields[pace]}"))
        self.pace, self.total = 0.0, 0
        self.advice: set[str] = set()

    def __enter__(self) -> "Progress":
        self.bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.bar.stop()

    def steps(self, steps: Iterator[int], first: int, total: int) -> Iterator[int]:
        if first:
            self.say(f"continuing at step {first} of {total}")
        task = self.bar.add_task(self.title, total=total, completed=first, pace="")
        start = warm = time.monotonic()
        due, self.total = LINE_EVERY, total
        with self._stopping():
            for step in steps:
                if self.is_asked:
                    self.is_stopped = True
                    return
                yield step
                now, done = time.monotonic(), step + 1 - first
                self.pace = (now - warm) / max(done - 1, 1)
                warm = now if done == 1 else warm
                self.bar.update(task, completed=step + 1, pace=self.left(step + 1))
                if done == FIRST_STEPS and self.pace * (total - step) > 60:
                    self.say(f"{self.title}: {self.left(step + 1)}")
                if not self.console.is_terminal and now - start >= due:
                    due = 2 * (now - start)
                    so_far = f"{now - start:.0f} s, {self.left(step + 1)}"
                    self.say(f"{self.title}: step {step + 1} of {total}  ({so_far})")

    def left(self, step: int) -> str:
        """The time of a step, and what is left after so many of the epoch and of the run."""
        text = f"{self.pace:.2g} s a step" if self.pace < 100 else f"{in_words(self.pace)} a step"
        if self.per_epoch and (epoch := -step % self.per_epoch):
            text += f", {in_words(self.pace * epoch)} left of epoch {step // self.per_epoch + 1}"
        return f"{text}, {in_words(self.pace * (self.total - step))} left of the run"

    def say(self, text: str, style: str | None = None) -> None:
        """A line, which a terminal may wrap and nobody else."""
        self.console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)

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
        self.say("stopping after this step (once more: at once)")

    def epoch(self, line: dict[str, Any]) -> None:
        text = f"epoch {line['epoch']:4d}  root mse {line['root_mse']:.5f}  nll {line['nll']:.3f}"
        text += f"  entropy {line['entropy']:.3f}  ε {line['epsilon']:.3g}  lr {line['lr']:.2g}"
        if "val_psnr" in line:
            psnr = " / ".join(f"{v:.2f}" for v in line["val_psnr"])
            nll = " / ".join(f"{v:.3f}" for v in line["val_nll"][1:])
            text += f"  | validation psnr {psnr}  nll {nll}"
        text += f"  ({line['seconds']:.0f} s"
        if left := self.pace and self.total - line["step"]:
            text += f", {in_words(self.pace * left)} left"
        self.say(f"{text})")
        for warning in line.get("warnings", []):
            _, _, advice = warning.partition(": ")
            if advice not in self.advice:
                self.advice.add(advice)
                self.say(f"warning: {warning}", "yellow")


def in_words(seconds: float | int) -> str:
    """A time as people say it: 45 s, 12 min, 3.4 h, 2.1 days."""
    for size, unit, most in ((1, "s", 100), (60, "min", 100), (3600, "h", 48)):
        if seconds / size < most:
            return f"{seconds / size:.{1 if unit == 'h' else 0}f} {unit}"
    return f"{seconds / 86400:.1f} days"


def track(title: str) -> Callable[[Any], Iterator[Any]]:
    """A wrapper for a loop that shows how far it is: a bar if it takes longer than a second, and
    where there is no terminal a line every `LINE_EVERY` seconds."""

    def watch(items: Any) -> Iterator[Any]:
        console = Console(stderr=True)
        start = said = time.monotonic()
        bar, task = _bar(console), None
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


def report(is_json: bool, describe: Callable[[Any], dict[str, Any]]) -> Callable:
    """A wrapper for a loop over what ends: a line for each, for people or for programs, which has
    what `describe` says of it."""

    def watch(items: Any) -> Iterator[Any]:
        start = time.monotonic()
        for done, item in enumerate(items, start=1):
            yield item
            pace = done / max(time.monotonic() - start, 1e-9)
            facts, left = describe(item), (len(items) - done) / pace
            if is_json:
                facts |= {"done": done, "total": len(items), "per_second": round(pace, 3),
                          "seconds_left": round(left, 1)}  # fmt: skip
                line = json.dumps(facts)
            else:
                words = "  ".join(map(str, facts.values()))
                line = f"{done} of {len(items)}  {words}  {pace:.2g}/s, {in_words(left)} left"
            print(line, file=sys.stderr, flush=True)

    return watch


class Pace(bars.ProgressColumn):
    """How many in a second."""

    def render(self, task: bars.Task) -> Text:
        return Text(f"{task.speed:.2g}/s" if task.speed else "")


def _bar(console: Console, *times: bars.ProgressColumn) -> bars.Progress:
    return bars.Progress(
        bars.TextColumn("{task.description}"), bars.BarColumn(), bars.MofNCompleteColumn(),
        *(times or (Pace(), bars.TimeRemainingColumn())),
        console=console, disable=not console.is_terminal, transient=True,
    )  # fmt: skip
