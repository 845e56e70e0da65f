"""Files of ours that were changed: named and refused, never believed, never slow."""

import resource
import time
from pathlib import Path

import pytest
import torch
from mutants import facts_of, forge, mutants, read_header, write_header
from posterior_trees_paper.baselines.sampling import load_baseline
from safetensors.torch import save
from tiny import make_blobs, make_recipe, make_tree

from posterior_trees import Tree, load, store
from posterior_trees.errors import (
    GuaranteeError,
    InputError,
    ModelError,
    PosteriorTreesError,
    RecipeError,
    StoreError,
)
from posterior_trees.guarantee.certificate import Guarantee
from posterior_trees.guarantee.certify import calibrate
from posterior_trees.models.build import build_predictor
from posterior_trees.models.checkpoint import save_model
from posterior_trees.training.devices import make_fabric
from posterior_trees.training.run import Run, RunError
from posterior_trees.training.trainer import Trainer


@pytest.fixture
def model(tmp_path) -> Path:
    torch.manual_seed(0)
    recipe = make_recipe("network.steps=1", "network.doublings=1")
    predictor = build_predictor(recipe)
    about = {"input_brightness": [0.1, 0.9], "test": {"n": 8, "psnr": [{"depth": 0, "mean": 1.5}]}}
    save_model(tmp_path / "model.safetensors", predictor, recipe, about)
    return tmp_path / "model.safetensors"


@pytest.fixture
def tree(tmp_path) -> Path:
    make_tree(2, 4)[0].save(tmp_path / "tree.safetensors")
    return tmp_path / "tree.safetensors"


@pytest.fixture
def trainer(tmp_path) -> Trainer:
    """A run after two steps, with its state saved."""
    recipe = make_recipe("network.steps=1", "network.doublings=1", "balancer.is_on=true")
    torch.manual_seed(0)
    run = Run(tmp_path / "run", recipe)
    fabric = make_fabric(recipe, "cpu", 1)
    begun = Trainer(recipe, build_predictor(recipe), make_blobs(16), None, fabric, run)
    begun.advance(0)
    begun.advance(1)
    begun.save()
    return begun


def without_sums(file: Path) -> None:
    """As files were before there were checksums."""
    header, values = read_header(file)
    write_header(file, forge(header, facts_of(header)), values)


def flip(file: Path, place: int) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 4
    file.write_bytes(content)


def test_every_flipped_bit_of_a_tensor_is_refused_by_its_name(model, tree, trainer):
    readers = {model: load, tree: Tree.load, trainer.run.state_file: lambda _: trainer.run.load()}
    for file, read in readers.items():
        whole = file.read_bytes()
        header, values = read_header(file)
        start = len(whole) - len(values)
        for name, entry in header.items():
            first, end = entry.get("data_offsets", (0, 0))
            if end > first:
                flip(file, start + (first + end) // 2)
                with pytest.raises(PosteriorTreesError, match="damaged") as error:
                    read(file)
                assert repr(name) in str(error.value)
                file.write_bytes(whole)
        read(file)


def test_changed_facts_are_refused_and_files_without_checksums_still_load(model, tree, trainer):
    for file, read in ((model, load), (tree, Tree.load), (trainer.run.state_file, store.read)):
        header, values = read_header(file)
        facts = facts_of(header) | {"more": 1}
        with_more = forge(header, facts, with_sums=True)
        with_more["__metadata__"]["checksums"] = header["__metadata__"]["checksums"]
        write_header(file, with_more, values)
        with pytest.raises(PosteriorTreesError, match="facts are not what was written"):
            read(file)
        write_header(file, forge(header, facts), values)
        read(file)


def test_a_checksum_is_quick(tmp_path):
    """Beside what reading takes anyway: thirty megabytes in less than a third of a second."""
    store.write(tmp_path / "f", {"x": torch.rand(7_500_000)}, {})
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        store.read(tmp_path / "f")
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.3


@pytest.mark.parametrize("name", ["images.0", "images.1", "log_probs.1"])
def test_trees_of_nan_are_neither_loaded_nor_saved(tree, name):
    whole = Tree.load(tree)
    tensors, facts = store.read(tree)
    tensors[name][0, 0] = float("nan")
    store.write(tree, tensors, facts)
    with pytest.raises(StoreError, match=rf"numbers of {name} are not"):
        Tree.load(tree)
    part, _, level = name.partition(".")
    getattr(whole, part)[int(level)][0, 0] = float("nan")
    with pytest.raises(StoreError, match=rf"not written.*numbers of {name} are not"):
        whole.save(tree)


def test_levels_of_other_sizes_are_no_tree(tree):
    tensors, facts = store.read(tree)
    tensors["images.2"] = tensors["images.2"][..., :2].clone()
    store.write(tree, tensors, facts)
    with pytest.raises(StoreError, match=r"images\.2 is .*unlike images\.0"):
        Tree.load(tree)


def test_weights_of_nan_do_not_load(model):
    weights, facts = store.read(model)
    name = next(iter(weights))
    weights[name].view(-1)[0] = float("inf")
    store.write(model, weights, facts)
    with pytest.raises(ModelError, match=f"NaN or infinite weights in 1 tensor, first '{name}'"):
        load(model)


def with_recipe(file: Path, old: str, new: str) -> None:
    weights, facts = store.read(file)
    assert old in facts["recipe"]
    store.write(file, weights, facts | {"recipe": facts["recipe"].replace(old, new)})


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("width = 0", "width = 3000", "another layout than its recipe"),
        ("width = 0", "width = 65536", "another layout than its recipe"),
        ("width = 0", "width = 1000000000", "network.width is 1000000000; it must be at most"),
        ("\nsteps = 1", "\nsteps = 10000000", "network.steps is 10000000; it must be at most"),
        ("depth = 1", "depth = 1000000000", "tree.depth is 1000000000; it must be at most"),
        ("branching = 2", "branching = 4096\ndepth = 3#", "leaves, at most 4096"),
        ("size = []", "size = [90000, 90000]", "data.size is 90000; it must be at most"),
    ],
)
def test_a_small_file_that_asks_for_a_huge_network_is_refused_at_once(model, old, new, message):
    if "depth = 3#" in new:
        with_recipe(model, "depth = 1\n", "")
    with_recipe(model, old, new)
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    with pytest.raises((ModelError, RecipeError), match=message):
        load(model)
    assert time.monotonic() - start < 5
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 300_000, f"{grown} kB"


@pytest.mark.parametrize(
    "change",
    ["optimizer.lr=0", "optimizer.lr=nan", "optimizer.lr=-1", "optimizer.head_lr=0",
     "measurement.fill=inf", "loss.epsilon_scale=nan", "network.dropout=1.5", "seed=2e1",
     "network.multipliers=[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", f"seed={2**70}",
     "training.batch_size=10000000"],
)  # fmt: skip
def test_a_recipe_has_limits_on_every_number(change):
    with pytest.raises(RecipeError, match=change.partition("=")[0]):
        make_recipe(change)


@pytest.mark.parametrize(
    ("key", "wrong"),
    [("images", 3), ("step", "x"), ("step", 3.5), ("best", []), ("schedule", 3), ("network", 1)],
)
def test_a_state_of_the_wrong_types_is_refused(trainer, key, wrong):
    tensors, facts = store.read(trainer.run.state_file)
    kept = {name: t for name, t in tensors.items() if not name.startswith(f"{key}/")}
    store.write(trainer.run.state_file, kept, {"state": facts["state"] | {key: wrong}})
    with pytest.raises(RunError, match=rf"cannot be continued: the state\.{key} is"):
        trainer.resume()


def test_a_state_that_does_not_name_its_images_is_refused(trainer):
    tensors, facts = store.read(trainer.run.state_file)
    del facts["state"]["images"]["names"]
    store.write(trainer.run.state_file, tensors, facts)
    with pytest.raises(RunError, match=r"state\.images lack 'names'"):
        trainer.resume()


def test_a_state_with_a_tensor_of_another_shape_is_refused(trainer):
    tensors, facts = store.read(trainer.run.state_file)
    tensors["balancer/gram"] = torch.zeros(3, 3)
    store.write(trainer.run.state_file, tensors, facts)
    with pytest.raises(RunError, match=r"balancer\.gram has the shape"):
        trainer.resume()


def test_tensors_inside_a_fact_are_refused(trainer):
    content = save({"step/a": torch.zeros(1)}, {"posterior_trees": '{"state": {"step": 1}}'})
    trainer.run.state_file.write_bytes(content)
    with pytest.raises(RunError, match="lies in 'step'"):
        trainer.resume()


def attack(read, file: Path, count: int) -> list[str]:
    """What was neither read nor refused in words, of so many mutants of a file."""
    whole, failures = file.read_bytes(), []
    for number, what in enumerate(mutants(file, out := file.with_suffix(".mutant"), count)):
        content = out.read_bytes()
        file.write_bytes(content)
        try:
            read()
        except (PosteriorTreesError, OSError):
            pass
        except Exception as error:  # anything else is a traceback for the user
            failures.append(f"{number} ({what}): {type(error).__name__}: {error}"[:200])
        file.write_bytes(whole)
    return failures


COUNTS = [pytest.param(1000, id="fast"), pytest.param(20_000, id="slow", marks=pytest.mark.slow)]


@pytest.mark.parametrize("count", COUNTS)
def test_mutants_are_read_or_refused_in_words(model, tree, trainer, count):
    def describe() -> None:
        load(model, device="cpu")

    failures = attack(describe, model, count // 3)
    failures += attack(lambda: Tree.load(tree), tree, count // 3)
    failures += attack(trainer.resume, trainer.run.state_file, count - 2 * (count // 3))
    assert not failures, f"{len(failures)} of {count}:\n" + "\n".join(failures[:20])


@pytest.mark.parametrize("facts", [{"baseline": "x"}, {"baseline": 1, "recipe": 3}])
def test_a_baseline_of_the_wrong_types_is_refused(tmp_path, facts):
    store.write(tmp_path / "b.safetensors", {}, facts)
    with pytest.raises(ModelError, match="is damaged: its facts"):
        load_baseline(tmp_path / "b.safetensors")


@pytest.fixture
def certificate(tmp_path) -> Path:
    predictor = build_predictor(make_recipe("network.steps=1", "network.doublings=1")).eval()
    calibrate(predictor, make_blobs(60), "image", ["ink"], (3, 3)).save(tmp_path / "c.safetensors")
    return tmp_path / "c.safetensors"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n": 10**9}, "holds .* scores"),
        ({"groups": 3}, "in 3 groups"),
        ({"level": None}, "level is None"),
        ({"grid": {"inside": [0, 0, 8, 8], "size": [3, 3], "step": [0, 1]}}, "no image"),
        ({"grid": {"inside": [0, 0, 99, 8], "size": [3, 3], "step": [1, 1]}}, "no image"),
        ({"grid": {"inside": 3}}, "inside|lack"),
        ({"measures": {"ink": {"form": [True, 2**70, 0.0]}}}, "form|lack"),
    ],
)
def test_a_certificate_promises_nothing_that_was_not_measured(certificate, change, words):
    """Nor does it take for ever: more images than were scored would be a stronger promise."""
    header, values = read_header(certificate)
    write_header(certificate, forge(header, facts_of(header) | change), values)
    start = time.monotonic()
    with pytest.raises(InputError, match=words):
        Guarantee.load(certificate)
    assert time.monotonic() - start < 5


def test_scores_that_are_none_promise_nothing(certificate):
    tensors, facts = store.read(certificate)
    for name, number in (("scores.ball", float("nan")), ("fitted.ball", float("inf"))):
        wrong = tensors["guarantee." + name].clone()
        wrong[-1] = number
        store.write(certificate, tensors | {"guarantee." + name: wrong}, facts)
        with pytest.raises(GuaranteeError, match="damaged"):
            Guarantee.load(certificate)
