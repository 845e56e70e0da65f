"""What a page shows before anybody gives it a picture: the user's files, or sample pictures."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from posterior_trees.assets import SIZES, sample_pictures
from posterior_trees.errors import DataError, plural, warn_picture
from posterior_trees.explore.content import Measure
from posterior_trees.models.card import says
from posterior_trees.pictures.answer import answer, warn_of
from posterior_trees.pictures.reading import Reading, read
from posterior_trees.predictor import Predictor
from posterior_trees.serve.ask import refuse_doubtful
from posterior_trees.serve.growths import Growths
from posterior_trees.tree import Tree

SAMPLES = 12
"""How many of them a served page begins with."""


def describe_start(
    predictor: Predictor,
    files: Sequence[Path],
    reading: Reading | None = None,
    *,
    rivals: Sequence[tuple[str, Path]] = (),
    measures: Mapping[str, Measure] | None = None,
    warn: Callable[[str], object] = warn_picture,
    growths: Growths | None = None,
) -> list[dict]:
    """Examples of the given files, or of the samples that the model's card names; `warn` hears of
    files that do not fit the model or its size; `growths` keeps what can be grown on."""
    reading = reading or Reading()
    reading.check(predictor, len(files))
    pictures = [read(file, predictor, reading) for file in files]
    names = [file.name for file in files]
    if not files and (kind := says(predictor, "samples")) in SIZES:
        pictures = [read(sample, predictor) for sample in sample_pictures(kind, SAMPLES)]
        names = [f"{kind.removesuffix('s')} {i + 1}" for i in range(len(pictures))]
    others = {name: _load_trees(file, len(pictures)) for name, file in rivals}
    examples = []
    for i, (name, picture) in enumerate(zip(names, pictures, strict=True)):
        refuse_doubtful(predictor, picture)
        made = answer(predictor, picture)
        warn_of(picture, made, warn)
        rival = {method: trees[i] for method, trees in others.items()}
        kept = growths.keep(made) if growths else {}
        examples.append(made.describe(name, rival, measures) | kept)
    return examples


def _load_trees(file: Path, count: int) -> Tree:
    if not file.is_file():
        raise DataError(f"{file} does not exist. Check the name")
    trees = Tree.load(file)
    if len(trees) != count:
        raise DataError(
            f"{file} holds {plural(len(trees), 'tree')} for {plural(count, 'picture')}: a "
            "comparison needs one for each"
        )
    return trees
