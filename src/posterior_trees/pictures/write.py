"""Trees of a user's own picture files, as files: `ptrees predict`.

    out/index.html    the explorer of all pictures; it grows as they come
    out/<stem>/       a folder for each, see `folder.py`
    out/…             other formats and tables, see `results.py`

Fields are done by an engine, one by one; what becomes of them is put together here.
"""

import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from os import PathLike
from pathlib import Path

from posterior_trees.engine import Engine, OneProcess, Outcome, WorkerError, attempt
from posterior_trees.errors import InputError, StoreError, plural, warn_picture, words_for
from posterior_trees.imaging.fields import Field, stem_of
from posterior_trees.imaging.ome_zarr import is_zarr
from posterior_trees.imaging.ome_zarr import stamp_of as stamp_of_zarr
from posterior_trees.pictures.answer import Tiling
from posterior_trees.pictures.folder import Also, write_links, write_page
from posterior_trees.pictures.huge import is_huge, scratch_of, stream_field
from posterior_trees.pictures.place import stage
from posterior_trees.pictures.reading import Reading, stamp_of
from posterior_trees.pictures.results import MANY, Results, Task
from posterior_trees.pictures.work import Work
from posterior_trees.predictor import Predictor

PAGE_EVERY = 5
"""The page grows with each picture, unless that would be more than a sixth of the work."""


class PictureError(InputError):
    """Pictures that could not be predicted, each with its reason; `written` are the others'."""

    def __init__(self, problems: Sequence[str], of: int, written: Sequence[Path]) -> None:
        listed = "".join(f"\n  {problem}" for problem in problems)
        super().__init__(
            f"{len(problems)} of {plural(of, 'picture')} could not be predicted:{listed}"
        )
        self.written = list(written)


def predict_files(
    predictor: Predictor,
    files: Sequence[str | PathLike[str] | Field],
    out: str | PathLike[str],
    reading: Reading | None = None,
    tiling: Tiling | None = None,
    *,
    also: Also | None = None,
    remark: str = "",
    results: Results | None = None,
    engine: Engine | None = None,
    make_predictor: Callable[[], Predictor] | None = None,
    share: tuple[int, int] = (0, 1),
    check: Callable[[list[Field]], object] = len,
    scratch: Path | None = None,
    keeps_tiles: bool = False,
    warn: Callable[[str], object] = warn_picture,
    watch: Callable = iter,
    watch_tiles: Callable = iter,
) -> list[Path]:
    """Write the tree of each picture into a folder `out/<stem>` of its own, and the explorer of all
    of them; returns `out/index.html` and the folders.

    A folder holds the files above and appears whole or not at all. Pictures that fail do not stop
    the others: the `PictureError` at the end names them all. `also(answer, folder, facts)` may
    write more files into a folder and return numbers of the leaves, whose distributions the page
    then shows; `facts` are those of `tree.json`. `results` adds other files and tables, and knows
    which fields are done already. `remark` is what to beware of in all pictures.

    The `engine` does the work, this process by default; others get their predictor by
    `make_predictor()`. Of a `share` (i, n) only every n-th field is done, from the i-th. `check`
    may refuse the fields that are to be done. `watch` wraps the loop over what becomes of them,
    `watch_tiles` that over tiles in this process. Huge fields without a page go to disk
    (`huge.py`), their tiles to `scratch` meanwhile.
    """
    reading = reading or Reading()
    reading.check(predictor, len(files))
    if reading.resize and not predictor.measurement.size:
        warn(
            "--resize does nothing here: it is for models of one size, and this one takes any. "
            "--scale FACTOR makes a picture larger or smaller"
        )
    fields = [f if isinstance(f, Field) else Field(Path(f), stem_of(Path(f))) for f in files]
    tasks = _name_tasks(fields, Path(out))

    def watched(predict: Callable, tiles: Iterable) -> Iterable:
        return map(predict, watch_tiles(tiles))

    with stage(out, f"{share[0]}-{share[1]}" if share[1] > 1 else "") as place:
        work = Work(make_predictor or partial(_same, predictor), place, Path(out), reading,
                    tiling or Tiling(), results, also, remark, len(tasks) > MANY, watched,
                    scratch, keeps_tiles)  # fmt: skip
        work.predictor = predictor
        run = _Run(work, tasks, share, warn)
        engine, todo = engine or OneProcess(), run.begin(check)
        huge = [task for task in todo if is_huge(work, task)]
        small = [task for task in todo if task not in huge]
        with closing(engine.run(work, small)) as outcomes:
            for outcome in watch(Outcomes(outcomes, len(small))):
                run.take(outcome)
        for task in huge:
            assert results is not None
            stream = partial(stream_field, work, results, engine, watch_tiles)
            run.take(attempt(stream, task, None))
        return run.finish()


class Outcomes:
    """What becomes of fields, and of how many."""

    def __init__(self, outcomes: Iterator[Outcome], count: int) -> None:
        self.outcomes, self.count = outcomes, count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Outcome]:
        return self.outcomes


def _same(predictor: Predictor) -> Predictor:
    return predictor


class _Run:
    """The fields of one call, as they end."""

    def __init__(
        self, work: Work, tasks: Sequence[Task], share: tuple[int, int],
        warn: Callable[[str], object],
    ) -> None:  # fmt: skip
        self.work, self.results, self.warn = work, work.results, warn
        self.tasks, self.mine = tasks, tasks[share[0] % share[1] :: share[1]]
        self.page_at = self.page_seconds = 0.0
        self.examples: dict[str, dict] = {}
        self.problems: list[str] = []

    def begin(self, check: Callable[[list[Field]], object]) -> list[Task]:
        """The fields that are to be done; those that are done already count as written."""
        if self.results is None:
            check([task.field for task in self.mine])
            return list(self.mine)
        self.results.begin()
        todo, done = [], []
        for task in self.mine:
            record = self.results.find(task, _stamp(task.field))
            if record is None or (self.work.has_page and not (self.work.out / task.name).is_dir()):
                todo.append(task)
                continue
            done.append(task)
            if not self.work.keeps_tiles:  # of a process that was killed as it removed them
                shutil.rmtree(scratch_of(self.work, task), ignore_errors=True)
            if self.work.has_page:
                self.examples[task.name] = record["example"] or {}
        check([task.field for task in todo])
        self.results.start(done)
        if done:
            self.warn(f"{len(done)} of {len(self.mine)} fields were done before (--overwrite makes "
                      "them anew)")  # fmt: skip
        return todo

    def take(self, outcome: Outcome) -> None:
        """What became of a field; what went wrong with it is kept for the end."""
        task, error = outcome.item, outcome.error
        if error is None:
            made = outcome.value
            for words in made.said:
                self.warn(words)
            if self.results is not None:
                self.results.add(made.record)
            if made.example is not None:
                self.examples[task.name] = made.example
                since = time.monotonic() - self.page_at
                is_shared = self.results is not None and self.results.is_shared
                if since >= PAGE_EVERY * self.page_seconds and not is_shared:
                    self._show()
            return
        if not (text := words_for(error)):
            raise error
        if isinstance(error, WorkerError):
            text = f"field {task.field.path} {text}"
        elif not text.startswith(str(task.field.path)):
            text = f"{task.field.path}: {text}"
        self.problems.append(text)
        if self.results is not None:
            with suppress(StoreError):  # a full disk: it is told at the end all the same
                self.results.add(self.results.fail(task, text, outcome.seconds))

    def finish(self) -> list[Path]:
        """What was written; raises what went wrong."""
        results, out = self.results, self.work.out
        folders = [out / t.name for t in self.mine if t.name in self.examples]
        written = [out / "index.html", *folders] if self.examples else []
        if results is None:
            self._show_last()
        else:
            try:
                results.finish(self.tasks, self._show_last)
            except StoreError as error:
                if not self.problems:
                    raise
                self.warn(str(error))
            tables = {"nuclei.csv", "fields.csv"} if results.is_tabled else set()
            written += [out / name for name in sorted(tables) if (out / name).is_file()]
        if self.problems:
            raise PictureError(self.problems, len(self.mine), written)
        return written

    def _show(self) -> None:
        """The page of all fields so far, in their order; of many, which have pages, the links."""
        start, page = time.monotonic(), self.work.place / "index.html"
        shown = [task.name for task in self.tasks if task.name in self.examples]
        if self.work.is_many:
            write_links(page, shown)
        else:
            examples = [self.examples[name] for name in shown]
            write_page(page, self.work.predictor, examples)
        self.work.out.mkdir(parents=True, exist_ok=True)
        page.replace(self.work.out / page.name)
        self.page_at = time.monotonic()
        self.page_seconds = self.page_at - start

    def _show_last(self) -> None:
        """The page, with what other array jobs have done."""
        if self.results is not None and self.results.is_shared and self.work.has_page:
            found = {task.name: self.results.recorded(task) for task in self.tasks}
            self.examples = {name: record.get("example") or {} for name, record in found.items()
                             if record and record["status"] == "done"}  # fmt: skip
        if self.examples:
            self._show()


def _stamp(field: Field) -> dict:
    try:
        stamp = stamp_of_zarr(field.path) if is_zarr(field.path) else stamp_of(field.path)
        return json.loads(json.dumps(stamp))
    except OSError:
        return {}


def _name_tasks(fields: Sequence[Field], out: Path) -> list[Task]:
    """Fields with the names of their folders: new, or of one that holds an earlier tree. On some
    systems `A` and `a` are one name, and dots at the ends of names mean something else."""
    tasks: list[Task] = []
    taken = {"index.html"}
    for field in fields:
        stem = field.name.strip(". ") or "picture"
        name, number = stem, 1
        while name.lower() in taken or _is_foreign(out / name):
            number += 1
            name = f"{stem}-{number}"
        taken.add(name.lower())
        tasks.append(Task(field, name))
    return tasks


def _is_foreign(folder: Path) -> bool:
    return folder.exists() and not (folder / "tree.json").is_file()
