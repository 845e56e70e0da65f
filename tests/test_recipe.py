"""Recipes: what is written is read back, and every mistake is named with its fix."""

import dataclasses

import pytest

from posterior_trees.errors import RecipeError
from posterior_trees.measure import Colorize, Denoise, Downsample, Inpaint, Paired
from posterior_trees.models.build import build_measurement, build_predictor
from posterior_trees.models.checkpoint import load_recipe
from posterior_trees.recipe import (
    TASKS,
    Recipe,
    parse_recipe,
    parse_resolved,
    read_recipe,
    write_recipe,
)
from posterior_trees.recipe.sections import DataSpec

DIGITS = 'task = "digits_inpaint"\n'
OWN = """
task = "my photos"
[data]
name = "photos"
[measurement]
kind = "colorize"
"""


def test_a_task_fills_in_data_and_measurement():
    recipe = parse_recipe(DIGITS)
    assert (recipe.data.name, recipe.data.kind, recipe.data.channels) == ("mnist", "idx", 1)
    assert recipe.network.padding == "zeros"
    measurement = build_measurement(recipe)
    assert isinstance(measurement, Inpaint)
    assert measurement.hole.shape == (28, 28)
    assert measurement.hole[:20].all()
    assert not measurement.hole[20:].any()  # rows 0–19 of 28: 560 pixels


def test_what_the_file_says_wins_over_the_task():
    recipe = parse_recipe(DIGITS + "[measurement]\nrows = [0, 9]\n[data]\nvalidation = 0.5")
    assert recipe.measurement.rows == (0, 9)
    assert recipe.measurement.columns == (0, 27)
    assert recipe.data.validation == 0.5
    assert recipe.data.name == "mnist"


@pytest.mark.parametrize("text", [DIGITS, OWN])
def test_recipes_survive_the_round_trip(text):
    changes = ['data.name="a \\"quoted\\" \\\\ näme"', "seed=7", "data.augment=[\"flip\"]",
               "optimizer.lr=3e-7", "balancer.is_on=true",
               "training.average_half_life=0.25"]  # fmt: skip
    recipe = parse_recipe(text, changes)
    assert recipe.data.name == 'a "quoted" \\ näme'
    again = parse_recipe(write_recipe(recipe))
    assert again == recipe
    assert write_recipe(again) == write_recipe(recipe)


def test_odd_characters_survive_the_round_trip():
    recipe = dataclasses.replace(
        parse_recipe(OWN), task="tab\tline\nend", data=DataSpec(name='"\\x"', size=(8, 16))
    )
    assert parse_recipe(write_recipe(recipe)) == recipe


def test_the_written_recipe_names_every_key():
    text = write_recipe(parse_recipe(OWN))
    for section in dataclasses.fields(Recipe):
        if dataclasses.is_dataclass(section.type):
            for key in dataclasses.fields(section.type):
                assert f"\n{key.name} = " in text


def refused(text: str, *changes: str) -> str:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text, changes, origin="my.toml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("line", "wrong", "near"),
    [
        ("sed = 3", "sed", "seed"),
        ("[traning]\nepochs = 3", "traning", "training"),
        ("[tree]\nbranch = 3", "tree.branch", "tree.branching"),
        ("[optimizer]\nlearning_rate = 1\n", "optimizer.learning_rate", "known: name, lr"),
        ("[loss]\nepsilon_begin = 3", "loss.epsilon_begin", "loss.epsilon_s"),
        ("epochs = 3", "epochs", "training.epochs"),
        ("[tree]\nhead_lr = 3", "tree.head_lr", "optimizer.head_lr"),
    ],
)
def test_an_unknown_key_suggests_the_near_one(line, wrong, near):
    message = refused(DIGITS + line)
    assert f"my.toml: unknown key {wrong!r}" in message
    assert near in message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("tree.branching=1", "tree.branching is 1; it must be at least 2"),
        ("tree.branching=-3", "tree.branching is -3; it must be at least 2"),
        ("tree.depth=-1", "tree.depth is -1; it must be at least 0"),
        ("training.epochs=0", "training.epochs is 0; it must be at least 1"),
        ("loss.beta=nan", "loss.beta is nan; it must be at least 0"),
        ("network.decoder=both", "network.decoder is 'both'; choose one of 'disjoint', 'shared'"),
        ("network.head_dropout=1", "network.head_dropout is 1; it must be at most 0.99"),
        ("data.channels=2", "data.channels is 2; choose one of 1, 3"),
        ("data.kind=image", "data.kind is 'image'"),
        ("data.patch=-1", "data.patch is -1"),
        ("measurement.kind=blur", "measurement.kind is 'blur'; choose one of 'inpaint'"),
        ("balancer.floor=1.0", "balancer.floor is 1.0; it must be below 1"),
        ("data.size=32", "data.size is [32]; write [height, width]"),
        ("measurement.kind=paired", 'needs data.kind "pairs"'),
    ],
)
def test_impossible_values_are_named_with_their_limits(change, message):
    assert message in refused(DIGITS, change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("tree.branching=3.0", "tree.branching is 3.0; it must be int"),
        ("tree.branching=three", "tree.branching is 'three'; it must be int"),
        ("tree.depth=true", "tree.depth is True; it must be int"),
        ("balancer.is_on=1", "balancer.is_on is 1; it must be bool"),
        ("optimizer.lr=false", "optimizer.lr is False; it must be float"),
        ("data.name=3", "data.name is 3; it must be str"),
        ('data.size=["32", "32"]', "data.size is '32'; it must be int"),
        ("data.augment=[1]", "data.augment is 1; it must be str"),
        ("tree=3", "'tree' is a section, not a value"),
        ("seed.sub=3", "'seed' is not a section"),
        ("seed", "write it as key.sub=value"),
        ("task=[1]", "task '[1]' is not one of"),
    ],
)
def test_wrong_types_are_named(change, message):
    assert message in refused("seed = 1\n" + DIGITS, change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("data.validation=0", "data.validation is 0.0: probabilities are calibrated on held-out"),
        ("tree.depth=0", "tree.depth is 0: a root alone has no probabilities"),
    ],
)
def test_calibration_needs_held_out_images_and_leaves(change, message):
    found = refused(DIGITS, "training.calibrate=true", change)
    assert message in found
    assert "or training.calibrate=false" in found
    parse_recipe(DIGITS, ("training.calibrate=false", change))


def test_scaled_gradients_are_not_clipped():
    found = refused(DIGITS, "training.precision=16-mixed", "optimizer.clip=1.0")
    assert "optimizer.clip is 1.0" in found
    assert "bf16-mixed" in found
    for precision in ("bf16-mixed", "32-true", "auto"):
        parse_recipe(DIGITS, (f"training.precision={precision}", "optimizer.clip=1.0"))
    parse_recipe(DIGITS, ("training.precision=16-mixed",))


def test_depth_0_is_legal():
    recipe = parse_recipe(DIGITS, ["tree.depth=0"])
    predictor = build_predictor(recipe)
    assert (predictor.depth, predictor.num_leaves) == (0, 1)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("optimizer.lr=1", 1.0),
        ("optimizer.lr=1e-4", 1e-4),
        ("training.epochs = 12", 12),
        ("balancer.is_on=true", True),
        ("data.name=photos", "photos"),
        ('data.name="2024"', "2024"),
        ("data.name=my photos/a=b", "my photos/a=b"),
        ("training.precision=32-true", "32-true"),
        ("data.size=[64, 32]", (64, 32)),
        ("data.augment=flip", ("flip",)),
        ("data.augment=[]", ()),
    ],
)
def test_set_understands_numbers_words_lists_and_booleans(change, found):
    recipe = parse_recipe(OWN, [change])
    section, key = change.partition("=")[0].strip().split(".")
    value = getattr(getattr(recipe, section), key)
    assert value == found
    assert type(value) is type(found)


def test_later_changes_win():
    assert parse_recipe(DIGITS, ["seed=1", "seed=2"]).seed == 2


def test_an_unknown_task_lists_the_known_ones():
    message = refused('task = "digits"')
    assert "task 'digits' is not one of digits_inpaint" in message
    assert "[data]" in message
    assert "[measurement]" in message
    assert "is not one of" in refused("seed = 1")


def test_what_is_not_toml_is_named(tmp_path):
    assert "my.toml is not valid TOML" in refused("tree: {branching: 3}")
    (tmp_path / "picture.toml").write_bytes(b"\xff\xd8\xff\xe0 a picture")
    with pytest.raises(RecipeError, match=r"picture\.toml is not a text file"):
        read_recipe(tmp_path / "picture.toml")
    with pytest.raises(RecipeError, match=r"there is no recipe .*gone\.toml"):
        read_recipe(tmp_path / "gone.toml")


def test_a_recipe_file_is_read_with_its_changes(tmp_path):
    (tmp_path / "own.toml").write_text(OWN, encoding="utf-8")
    recipe = read_recipe(tmp_path / "own.toml", ["tree.depth=1"])
    assert recipe.tree.depth == 1
    assert recipe.task == "my photos"


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        (["measurement.kind=colorize"], Colorize),
        (["measurement.kind=denoise", "measurement.sigma=0.3"], Denoise),
        (["measurement.kind=downsample", "measurement.factor=2"], Downsample),
        (["measurement.kind=paired", "data.kind=pairs"], Paired),
    ],
)
def test_every_measurement_builds_its_predictor(changes, kind):
    recipe = parse_recipe(OWN, [*changes, "tree.depth=1", "network.c_init=1"])
    predictor = build_predictor(recipe)
    assert type(predictor.measurement) is kind
    assert predictor.network.in_channels == predictor.measurement.channels(3)
    assert predictor.branching == (3,)


def test_a_hole_scales_with_the_images():
    text = (
        OWN.replace("colorize", "inpaint")
        + "rows = [80, 149]\ncolumns = [40, 214]\nof = [256, 256]"
    )
    full, half = (
        build_measurement(parse_recipe(text, [f"data.size=[{size}, {size}]"]))
        for size in (256, 128)
    )
    assert full.hole.sum() == 70 * 175
    assert half.hole.shape == (128, 128)
    assert half.hole[40:75, 20:107].all()


def test_a_hole_without_a_place_is_refused():
    words = r"measurement.rows is \[4, 28\]; of images with 28 rows .* 0 to 27"
    with pytest.raises(RecipeError, match=words):
        build_predictor(parse_recipe(DIGITS, ["measurement.rows=[4, 28]"]))
    with pytest.raises(RecipeError, match=r"measurement.columns is \[9, 3\]"):
        build_predictor(parse_recipe(DIGITS, ["measurement.columns=[9, 3]"]))
    with pytest.raises(RecipeError, match=r"needs rows = \[first, last\]"):
        build_measurement(parse_recipe(OWN, ["measurement.kind=inpaint"]))


def test_grey_images_cannot_be_colourised():
    with pytest.raises(ValueError, match="predicts 3 channels, the data have 1"):
        build_predictor(parse_recipe(OWN, ["data.channels=1"]))


def test_a_saved_recipe_does_not_follow_what_its_task_says_later():
    text = 'task = "cells_actin_to_dna"\nseed = 1\n'
    before = write_recipe(parse_recipe(text))
    older = "\n".join(line for line in before.splitlines() if not line.startswith("shift"))
    assert parse_resolved(before, "saved") == parse_recipe(text)
    assert parse_resolved(older, "saved").data.shift == ()  # the key came later
    assert parse_recipe(older).data.shift == (0.1, -0.7)


def test_a_recipe_of_before_hashes_keeps_its_splits() -> None:
    """New recipes are drawn by hash; the paper's tasks, and what was stored without a word, not."""
    assert parse_recipe(OWN).data.split_order == "hash"
    stored = write_recipe(parse_recipe(OWN))
    assert parse_resolved(stored, "run").data.split_order == "hash"
    old = stored.replace('split_order = "hash"\n', "")
    assert parse_resolved(old, "old run").data.split_order == "sorted"
    assert load_recipe("cells").data.split_order == "sorted"
    orders = {task: parse_recipe(f'task = "{task}"').data.split_order for task in TASKS}
    assert {task for task, order in orders.items() if order == "hash"} == {"cells_actin_to_dna"}


def test_a_rate_is_one_number_or_one_for_each_level() -> None:
    def rate(*changes: str) -> tuple[float, ...]:
        return parse_recipe(DIGITS, changes).loss.surprise

    assert rate() == rate("loss.surprise=0") == (0.0,)
    assert rate("loss.surprise=0.1") == rate("loss.surprise=[0.1]") == (0.1,)
    assert rate("loss.surprise=[0.2, 0.1]", "tree.depth=2") == (0.2, 0.1)
    assert rate("loss.surprise=[0.2, 0.1]", "tree.depth=0") == (0.2, 0.1), (
        "a plain network has none"
    )
    for wrong in ("-0.1", "[]", "[0.1, 0.2, 0.3]"):
        assert "one number of at least 0, or 2 of them" in refused(DIGITS, f"loss.surprise={wrong}")
    text = write_recipe(parse_recipe(DIGITS, ("loss.surprise=0.1",)))
    assert parse_recipe(text).loss.surprise == (0.1,)
