"""`ptrees calibrate`: certificates in model files, what is printed, refused and drawn."""

import csv
import json
import re
import struct

import pytest
import torch
from PIL import Image
from test_guarantee import draw_trees
from tiny import make_blobs, make_recipe

from posterior_trees import Tree, grow, load, store
from posterior_trees.cli import main
from posterior_trees.data import fingerprint, list_names
from posterior_trees.errors import GuaranteeError, MeasureError, ModelError
from posterior_trees.guarantee.bank import Bank
from posterior_trees.guarantee.certify import calibrate_trees
from posterior_trees.guarantee.report import diagnose, draw_report, sizes_of
from posterior_trees.models import checkpoint
from posterior_trees.models.build import build_predictor
from posterior_trees.pictures.nuclei.report import count_table


def write_blobs(folder, train: int = 20, test: int = 90) -> None:
    (folder / "blobs").mkdir(parents=True, exist_ok=True)
    for part, images in (("train", make_blobs(train)), ("t10k", make_blobs(test, seed=1))):
        header = struct.pack(">4B3I", 0, 0, 8, 3, len(images), 8, 8)
        file = folder / "blobs" / f"{part}-images-idx3-ubyte"
        file.write_bytes(header + images.x.numpy().tobytes())


@pytest.fixture
def world(tmp_path):
    """A data folder and the file of an untrained model."""
    write_blobs(tmp_path)
    torch.manual_seed(0)
    recipe = make_recipe()
    checkpoint.save_model(tmp_path / "m.safetensors", build_predictor(recipe), recipe, {})
    return tmp_path


def calibrate(world, *words: object) -> None:
    file = world / "m.safetensors"
    main(["calibrate", str(file), "--data", str(world), "--device", "cpu", *map(str, words)])


def test_a_model_file_keeps_its_certificate_and_its_weights(world, capsys):
    file = world / "m.safetensors"
    before = load(file, "cpu")
    calibrate(world, "--measure", "ink", "--measure", "share=0.5", "--box", 3, 3)
    said = capsys.readouterr().out
    for words in ("fit the scales", "finest level", "9 times of 10", "at most 3 nodes", "(RMSE)",
                  "ink: intervals", "any box of 3×3", "Not promised"):  # fmt: skip
        assert words in said
    after = load(file, "cpu")
    assert store.read_facts(file)["model"] == 2
    states = before.network.state_dict(), after.network.state_dict()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    y = after.measure(make_blobs(3, seed=4).batch(range(3))[0])
    assert torch.equal(before(y).leaves, after(y).leaves)
    assert before.guarantee is None
    assert len(after(y).cut(0.9)) == 3
    assert after(y).interval("share=0.5", 0.8).level == 0.8
    assert load(file, "cpu", torch.bfloat16)(y).guarantee is not None
    with pytest.raises(GuaranteeError, match="another dtype"):
        load(file, "cpu", torch.bfloat16)(y).cut(0.9)


def test_an_old_reader_asks_for_an_upgrade_and_an_old_file_has_no_guarantee(world, monkeypatch):
    file = world / "m.safetensors"
    assert store.read_facts(file)["model"] == 1
    calibrate(world)
    monkeypatch.setattr(checkpoint, "CERTIFIED", 1)
    with pytest.raises(ModelError, match="upgrade posterior-trees"):
        load(file, "cpu")


def test_a_certificate_travels_with_a_copy_and_is_replaced(world):
    copy = world / "out" / "copy.safetensors"
    calibrate(world, "--out", copy, "--bank", 30)
    assert load(world / "m.safetensors", "cpu").guarantee is None
    first = load(copy, "cpu").guarantee
    bank = Bank.load(world / "out" / "copy.bank")
    assert len(bank.truths) == 30
    assert bank.prints == first.facts["predictor"]
    main(["calibrate", str(copy), "--data", str(world), "--limit", "60", "--seed", "3"])
    second = load(copy, "cpu").guarantee
    assert (first.n, second.facts["seed"]) != (second.n, first.facts["seed"])
    assert not [name for name in store.read(copy)[0] if name.count("guarantee") > 1]


def test_a_model_to_begin_with_may_have_a_certificate(world):
    calibrate(world)
    other = build_predictor(make_recipe())
    checkpoint.start_from(other, world / "m.safetensors")
    mine = load(world / "m.safetensors", "cpu").network.state_dict()
    assert all(torch.equal(v, mine[k]) for k, v in other.network.state_dict().items())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--level", "0.99"], "99 % is finer than .* images allow"),
        (["--level", "1.5"], "level is 1.5"),
        (["--limit", "5"], "images would fit the scales"),
        (["--measure", "spots"], "there is no measure 'spots'"),
        (["--box", "30", "30"], "boxes of 30×30 do not fit"),
        (["--measure", "test_calibrate:broken"], "'test_calibrate:broken' fails of t10k/"),
    ],
)
def test_what_cannot_be_promised_is_refused_in_words(world, capsys, words, said):
    with pytest.raises(SystemExit) as stopped:
        calibrate(world, *words)
    assert stopped.value.code == 1
    told = capsys.readouterr().err
    assert re.search(said, told), told
    assert store.read_facts(world / "m.safetensors")["model"] == 1


def top(image):
    return image[:, :4].mean().item()


def test_a_measure_of_ones_own_is_promised_where_it_is_named_again(world):
    """A model's file names functions, and none of them is run for that."""
    calibrate(world, "--measure", "test_calibrate:top", "--measure", "ink", "--level", "0.8")
    picture = world / "picture.png"
    Image.fromarray(make_blobs(1, seed=7).x[0, 0].numpy()).save(picture)
    words = ["predict", str(world / "m.safetensors"), str(picture), "--out", str(world / "out")]
    for more, names in (([], ["ink"]), (["--measure", "test_calibrate:top"],
                                        ["ink", "test_calibrate:top"])):  # fmt: skip
        main([*words, *more, "--overwrite"])
        said = json.loads((world / "out" / "picture" / "tree.json").read_text())["promise"]
        assert sorted(said["intervals"]) == names
        assert said["level"] == 0.8
    file = world / "m.safetensors"
    predictor = load(file, "cpu")
    tree = predictor(predictor.measure(make_blobs(1, seed=7).batch([0])[0]))
    with pytest.raises(MeasureError, match=r"guarantee.measures\['test_calibrate:top'\] = …"):
        tree.interval("test_calibrate:top")
    predictor.guarantee.measures["test_calibrate:top"] = top
    assert tree.interval("test_calibrate:top").low.shape == (1,)


def test_a_measure_that_nothing_is_promised_of_is_refused(tmp_path, capsys):
    Image.new("L", (28, 28), 90).save(tmp_path / "a.png")
    words = ["predict", "digits", str(tmp_path / "a.png"), "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit):
        main([*words, "--measure", "share=0.3"])
    assert "share=0.3: nothing is promised of it, but of ink" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_images_that_may_have_changed_sides_are_announced(world, capsys):
    """The model keeps a fingerprint of the files that it was trained on."""
    (world / "photos").mkdir()
    for i, x in enumerate(make_blobs(90).x):
        Image.fromarray(x[0].numpy()).save(world / "photos" / f"{i:02d}.png")
    recipe = make_recipe("data.name=photos", "data.kind=images", "data.split=name", "data.test=0.5")
    model, names = build_predictor(recipe), list_names(recipe.data, world, "train")
    for known, is_told in ((fingerprint(names), False), (fingerprint(names[1:]), True)):
        about = {"train_names": known}
        checkpoint.save_model(world / "m.safetensors", model, recipe, about)
        calibrate(world)
        told = "may have been trained on" in capsys.readouterr().err
        assert told == is_told


def broken(image):
    raise RuntimeError("no")


def test_the_training_split_is_refused(world, capsys):
    with pytest.raises(SystemExit) as stopped:
        calibrate(world, "--split", "train")
    assert stopped.value.code == 2


def test_a_shipped_model_is_not_written_to(world, capsys):
    with pytest.raises(SystemExit):
        main(["calibrate", "digits", "--data", str(world)])
    assert "--out FILE" in capsys.readouterr().err


def honest_world(strength: float, n: int = 1500) -> tuple[Tree, torch.Tensor]:
    """Truths drawn from the trees' probabilities; the trees claim other ones, `strength` times as
    sure."""
    tree, x = draw_trees(n, shape=(1, 3, 3))
    claimed = (strength * tree.log_probs[-1]).log_softmax(dim=1)
    return grow(tree.leaves, claimed, (3, 3)), x


@pytest.mark.parametrize(
    ("strength", "verdict"), [(1.0, "honest"), (2.0, "too sure"), (0.5, "too unsure")]
)
@pytest.mark.parametrize("is_grouped", [False, True])
def test_the_report_tells_honest_trees_from_others_and_all_are_covered(
    tmp_path, strength, verdict, is_grouped
):
    names = [f"g{i // 10}" for i in range(1500)] if is_grouped else None
    found = diagnose(calibrate_trees(*honest_world(strength), names, ["ink"]))
    assert found.verdict == verdict
    at = found.levels.index(0.9)
    for name, coverage in found.coverage.items():
        assert coverage[at].mean().item() == pytest.approx(0.91, abs=0.03), name
    draw_report(tmp_path / "report.png", found, "a test")
    assert (tmp_path / "report.png").stat().st_size > 10_000


def test_sizes_are_those_of_the_answers():
    """What is printed of stored numbers is what trees answer."""
    tree, x = honest_world(1.0, 300)
    tree.guarantee = g = calibrate_trees(tree, x, measures=["ink"], box=(2, 2))
    found = sizes_of(g.judged.rows, g, 0.9)
    cuts = tree.cut(0.9)
    assert found["cut3.nodes"] == pytest.approx(sum(len(c.paths) for c in cuts) / 300)
    assert found["ball.radius"] == pytest.approx(tree.ball(0.9).radius.mean().item(), rel=1e-6)
    ink = tree.interval("ink", 0.9)
    assert found["ink.width"] == pytest.approx((ink.high - ink.low).mean().item(), rel=1e-6)


def test_the_report_is_one_figure(world, capsys):
    calibrate(world, "--report", world / "r" / "report.png")
    assert (world / "r" / "report.png").is_file()
    assert "trees by themselves" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "units", "size"), [("digits", 3231, 250_000), ("cells", 11, 40_000)]
)
def test_shipped_models_carry_certificates_from_images_that_were_not_trained_on(name, units, size):
    predictor = load(name, "cpu")
    g = predictor.guarantee
    assert (g.groups or g.n) == units
    assert g.finest_level > 0.9
    assert g.facts["split"] == "test"
    assert g.facts["note"]
    assert sum(tensor.nbytes for tensor in g.tensors().values()) < size
    y = torch.rand(1, 1, *g.facts["shape"][1:], generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        tree = predictor(y)
        assert tree.cut(0.9)[0].groups == g.groups
        assert tree.interval("ink").high.item() <= 1
        said = g.for_page(tree)
        assert "no promise" not in said["words"]
        assert said["withdrawn"].startswith("unlike the calibration images")
        smaller = load(name, "cpu")(y[..., :-4, :]) if name == "cells" else None
    if smaller is not None:
        with pytest.raises(GuaranteeError, match=r"pictures of 260×348, this one is 256×348"):
            smaller.cut()


def test_predicted_pictures_come_with_what_is_promised_of_them(world, capsys):
    calibrate(world, "--measure", "ink", "--measure", "nuclei")
    picture = world / "picture.png"
    Image.fromarray(make_blobs(1, seed=7).x[0, 0].numpy()).save(picture)
    words = [str(world / "m.safetensors"), str(picture), "--out", str(world / "out")]
    main(["predict", *words, "--count"])
    said = json.loads((world / "out" / "picture" / "tree.json").read_text())["promise"]
    assert said["level"] == 0.9
    assert said["intervals"].keys() == {"ink", "nuclei"}
    (row,) = csv.DictReader((world / "out" / "fields.csv").read_text().splitlines())
    low, high = said["intervals"]["nuclei"]
    assert low <= int(row["low"]) <= int(row["high"]) <= high
    assert row["promise"] == f"{row['low']} to {row['high']} nuclei {said['words']}"
    assert 0 <= said["intervals"]["ink"][0] <= said["intervals"]["ink"][1] <= 1
    assert said["p"] is not None
    assert '"cut"' in (world / "out" / "index.html").read_text()


@pytest.mark.parametrize(
    ("promise", "said"),
    [
        ({"withdrawn": "", "intervals": {"nuclei": [2.3, 7.8]}, "words": "90 of 100 times"},
         "3 to 7 nuclei 90 of 100 times, counted in each leaf"),
        ({"withdrawn": "pictures of 9×9"}, "no promise: pictures of 9×9"),
        ({"withdrawn": "", "intervals": {}}, None),
    ],
)  # fmt: skip
def test_a_table_of_counts_says_what_is_promised(promise, said):
    facts = {"leaves": [], "nuclei": [], "threshold": 0.5, "smallest": 25, "tiles": 1, "mean": 5.0,
             "spread": 1.0, "promise": promise}  # fmt: skip
    caption = str(count_table(facts, "a field").caption)
    assert (said in caption) if said else ("promise" not in caption)
