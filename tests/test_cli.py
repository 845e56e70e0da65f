"""The command line: exit codes 0, 1 and 2, and never a traceback for a user's mistake."""

import gzip
import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image

from posterior_trees import cli, store
from posterior_trees.cli.train import describe_calibration
from posterior_trees.data import ImageSet
from posterior_trees.data.facts import oddities
from posterior_trees.errors import InputError
from posterior_trees.models.build import build_predictor
from posterior_trees.models.checkpoint import save_model
from posterior_trees.predictor import TreePredictor
from posterior_trees.recipe import parse_recipe, read_recipe

RECIPE = 'task = "digits_inpaint"\n[tree]\nbranching = 2\n[network]\nc_init = 1\n'
COMMANDS = ("demo", "train", "evaluate", "predict", "figure", "toy", "data",
            "export", "explore", "baseline", "compare")  # fmt: skip


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def ptrees(capsys, monkeypatch):
    """Run a command in this process, as a user without settings."""
    monkeypatch.delenv("PTREES_DATA", raising=False)
    monkeypatch.delenv("PTREES_DEBUG", raising=False)

    def run(*words: object) -> Outcome:
        code = 0
        try:
            cli.main([str(word) for word in words])
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
        return Outcome(code, *capsys.readouterr())

    return run


def write_idx(file: Path, count: int) -> None:
    """Digits of a kind: a bright bar on black, somewhere."""
    images = np.zeros((count, 28, 28), np.uint8)
    for i, image in enumerate(images):
        image[4:24, 3 + i % 20 : 6 + i % 20] = 255
    header = struct.pack(">4B3I", 0, 0, 8, 3, count, 28, 28)
    file.write_bytes(gzip.compress(header + images.tobytes()))


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with a tiny model, tiny data, a recipe and pictures, good and bad."""
    folder = tmp_path_factory.mktemp("cli")
    recipe = parse_recipe(RECIPE)
    torch.manual_seed(0)
    about = {"input_brightness": [0.35, 0.45]}
    save_model(folder / "model.safetensors", build_predictor(recipe), recipe, about)
    (folder / "recipe.toml").write_text(RECIPE)
    (folder / "data" / "mnist").mkdir(parents=True)
    write_idx(folder / "data" / "mnist" / "train-images-idx3-ubyte.gz", 40)
    write_idx(folder / "data" / "mnist" / "t10k-images-idx3-ubyte.gz", 12)
    Image.fromarray(np.zeros((28, 28), np.uint8)).save(folder / "dark.png")
    Image.fromarray(np.full((28, 28), 255, np.uint8)).save(folder / "light.png")
    Image.fromarray(np.zeros((50, 40, 3), np.uint8)).save(folder / "large.jpg")
    (folder / "text.png").write_text("no picture")
    (folder / "phone.heic").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic")
    (folder / "scores.json").write_text('{"a": 1}')
    (folder / "empty").mkdir()
    (folder / "cut.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:5000])
    (folder / "typo.toml").write_text(RECIPE + "[training]\nepoch = 3\n")
    (folder / "broken.toml").write_text("task = ")
    store.write(folder / "state.safetensors", {"a": torch.zeros(1)}, {"state": {}})
    (folder / "tampered.safetensors").write_bytes(b"")
    other = parse_recipe(RECIPE.replace("c_init = 1", "c_init = 2"))
    save_model(folder / "other_layout.safetensors", build_predictor(recipe), other)
    return folder


# ---- wrong usage ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["fly"],
        ["train"],
        ["train", "recipe.toml"],
        ["evaluate"],
        ["evaluate", "digits", "--split", "dev"],
        ["evaluate", "digits", "--limit", "many"],
        ["predict", "digits", "--out", "x"],
        ["predict", "digits", "a.png"],
        ["figure", "digits"],
        ["demo", "--fast"],
        ["demo", "picture.png"],
        ["figure", "digits", "--out", "f.png", "--images", "1", "two"],
        ["train", "recipe.toml", "--out", "run", "--device", "gpus"],
        ["evaluate", "digits", "--device", "tpux"],
        ["baseline", "sample", "run", "another", "--out", "o"],
    ],
    ids=" ".join,
)
def test_wrong_usage_ends_with_two_and_the_command_s_usage(ptrees, words: list[str]) -> None:
    code, _, err = ptrees(*words)
    assert code == 2
    command = [word for word in words[:2] if word in (*COMMANDS, "sample")]
    assert err.startswith(" ".join(["usage: ptrees", *command, "["]))


ORDERS = {
    "explore digits --no-browser --save p.html a.png b.png": ("digits", ["a.png", "b.png"]),
    "explore --save p.html digits a.png --levels 1 2 b.png": ("digits", ["a.png", "b.png"]),
    "explore --port 0 digits": ("digits", []),
    "predict digits a.png --out trees b.png": ("digits", ["a.png", "b.png"]),
    "predict --out trees digits -- -odd.png": ("digits", ["-odd.png"]),
    "figure --data D --out f.png --images 0 1 runs/p": ("runs/p", [0, 1]),
    "figure --images 3 -- runs/p --out f.png": None,
    "figure --images 3 --out f.png -- runs/p": ("runs/p", [3]),
    "figure --images 0 1 runs/p --out f.png": ("runs/p", [0, 1]),
    "figure runs/p --out f.png --images -1": ("runs/p", [-1]),
}


@pytest.mark.parametrize(("line", "found"), ORDERS.items(), ids=ORDERS)
def test_options_and_other_words_come_in_any_order(line: str, found: tuple | None) -> None:
    if found is None:  # after -- nothing is an option
        with pytest.raises(SystemExit):
            cli.make_parser().parse_args(line.split())
        return
    arguments = cli.make_parser().parse_args(line.split())
    model, images = found
    assert arguments.model == model
    assert [image if isinstance(image, int) else str(image) for image in arguments.images] == images


def test_help_and_version_end_with_zero(ptrees) -> None:
    code, out, _ = ptrees("--help")
    assert code == 0
    assert all(command in out for command in COMMANDS)
    for command in COMMANDS:
        assert ptrees(command, "--help").code == 0
    code, out, _ = ptrees("--version")
    assert (code, out.split()[0]) == (0, "posterior-trees")


# ---- mistakes ------------------------------------------------------------------------------------


MISTAKES = {
    "missing model": (["evaluate", "nothing", "--data", "data"], "no model 'nothing'.*digits"),
    "missing model to predict": (["predict", "nothing", "dark.png", "--out", "o"], "no model"),
    "missing model to draw": (["figure", "no", "--data", "data", "--out", "f.png"], "no model"),
    "corrupt model": (["evaluate", "cut.safetensors", "--data", "data"], "cut.*is damaged"),
    "empty model": (["evaluate", "tampered.safetensors", "--data", "data"], "is damaged"),
    "state as model": (["evaluate", "state.safetensors", "--data", "data"], "state.safetensors"),
    "other layout": (["evaluate", "other_layout.safetensors", "--data", "data"], "another layout"),
    "recipe as model": (
        ["evaluate", "recipe.toml", "--data", "data"],
        "recipe.toml is a recipe, not a model: train it .ptrees train recipe.toml --out RUN",
    ),
    "picture as model": (["predict", "dark.png", "dark.png", "--out", "o"], "dark.png is damaged"),
    "run without weights": (["evaluate", "empty", "--data", "data"], "no best.safetensors"),
    "no data named": (
        ["evaluate", "model.safetensors"],
        "--data DIR or set the variable PTREES_DATA",
    ),
    "no data folder": (["evaluate", "model.safetensors", "--data", "none"], "none does not exist"),
    "missing set": (["evaluate", "model.safetensors", "--data", "empty"], "'mnist' is not in"),
    "scores of no model": (
        ["export", "model.safetensors", "--out", "e.safetensors", "--scores", "scores.json"],
        "scores.json holds no scores of a model: give the JSON of `ptrees evaluate",
    ),
    "scores that are no table": (
        ["export", "model.safetensors", "--out", "e.safetensors", "--scores", "text.png"],
        "text.png holds no scores",
    ),
    "missing recipe": (["train", "none.toml", "--out", "run"], "no recipe none.toml"),
    "unknown recipe key": (
        ["train", "typo.toml", "--out", "run"],
        "'training.epoch'; did you mean",
    ),
    "broken recipe": (["train", "broken.toml", "--out", "run"], "broken.toml is not valid TOML"),
    "set without value": (
        ["train", "recipe.toml", "--out", "run", "--set", "seed"],
        "'seed': write it as key.sub=value",
    ),
    "set of unknown key": (
        ["train", "recipe.toml", "--out", "run", "--set", "tree.dept=1"],
        "'tree.dept'; did you mean 'tree.depth'",
    ),
    "set of wrong type": (
        ["train", "recipe.toml", "--out", "run", "--set", "tree.depth=two"],
        "tree.depth is 'two'; it must be int",
    ),
    "set of wrong value": (
        ["train", "recipe.toml", "--out", "run", "--set", "tree.branching=1"],
        "tree.branching is 1; it must be at least 2",
    ),
    "training without data": (["train", "recipe.toml", "--out", "run"], "--data DIR"),
    "training without the set": (
        ["train", "recipe.toml", "--out", "run", "--data", "empty"],
        "'mnist' is not in",
    ),
    "unreadable picture": (
        ["predict", "model.safetensors", "text.png", "--out", "o"],
        "1 of 1 picture .*text.png is truncated or not an image",
    ),
    "phone's picture": (
        ["predict", "model.safetensors", "phone.heic", "--out", "o"],
        r"phone.heic is .*not an image.*HEIC\)\. Save or export it as JPEG or PNG",
    ),
    "missing picture": (
        ["predict", "model.safetensors", "none.png", "--out", "o"],
        "none.png does not exist",
    ),
    "large picture": (
        ["predict", "model.safetensors", "large.jpg", "--out", "o"],
        "large.jpg is 50×40.* 28×28.*--resize",
    ),
    "out is a file": (
        ["predict", "model.safetensors", "dark.png", "--out", "text.png"],
        "cannot make the folder text.png",
    ),
    "demo into a file": (["demo", "--out", "text.png"], "cannot make the folder text.png"),
    "figure of an image that is not there": (
        ["figure", "model.safetensors", "--data", "data", "--out", "f.png", "--images", "12"],
        "image 12 is not among 0…11",
    ),
    "figure of a region without growing": (
        ["figure", "model.safetensors", "--data", "data", "--out", "f.png", "--region", *"4123"],
        "--region is for trees that are grown: say with --grow",
    ),
    "figure grown where all is known": (
        [
            "figure",
            "model.safetensors",
            "--data",
            "data",
            "--out",
            "f.png",
            "--grow",
            "4",
            "--region",
            "25",
            "0",
            "2",
            "2",
        ],
        "the region shows only what is known already",
    ),
    "figure of a strange kind": (
        ["figure", "model.safetensors", "--data", "data", "--out", "f.gif"],
        "f.gif.*.png, .jpg, .svg, .pdf",
    ),
    "figure into no folder": (
        ["figure", "model.safetensors", "--data", "data", "--limit", "1", "--out", "no/f.png"],
        "could not write no.f.png.*There is no folder no: make it",
    ),
    "numbers into a file": (
        ["evaluate", "model.safetensors", "--data", "data", "--json", "text.png/f.json"],
        "cannot make the folder text.png",
    ),
    "no such download": (["data", "--data", "empty", "--download", "faces"], "only 'mnist' can"),
}


@pytest.mark.parametrize(("words", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_ends_with_one_and_a_message(
    ptrees, place: Path, monkeypatch, words: list[str], message: str
) -> None:
    monkeypatch.chdir(place)
    before = {path.name for path in place.iterdir()}
    outcome = ptrees(*words)
    assert outcome.code == 1
    text = " ".join(outcome.err.split())
    assert text.startswith(f"ptrees {words[0]}: "), text
    assert re.search(message, text), text
    assert "Traceback" not in text
    if words[0] != "train":
        assert {path.name for path in place.iterdir()} == before


@pytest.mark.parametrize(
    "words",
    [
        "evaluate digits --limit 0",
        "evaluate digits --limit -3",
        "figure digits --out f.png --limit 0",
        "train recipe.toml --out run --devices 0",
        "toy --out toy --seeds 0",
        "baseline mixture --out m.json --steps -3",
        "baseline bias --out b.json --samples 0",
    ],
)
def test_numbers_of_things_are_at_least_one(ptrees, words: str) -> None:
    *_, option, number = words.split()
    code, _, err = ptrees(*words.split())
    assert code == 2
    assert f"argument {option}: is {number}; it must be at least 1" in err


def test_numbers_go_into_a_new_folder(ptrees, place: Path, tmp_path: Path) -> None:
    file = tmp_path / "new" / "f.json"
    words = ["evaluate", place / "model.safetensors", "--data", place / "data", "--limit", "2"]
    assert ptrees(*words, "--json", file).code == 0
    assert json.loads(file.read_text())["n"] == 2


@pytest.mark.parametrize(
    ("error", "words", "is_bug"),
    [
        (None, "this is a bug, please report it", True),
        (ValueError("not ours"), "ValueError: not ours", True),
        (InputError("the value is 3"), "ptrees evaluate: the value is 3", False),
        (torch.OutOfMemoryError("CUDA out of memory"), "out of memory: take a smaller", False),
        (MemoryError(), "out of memory", False),
    ],
)
def test_a_bug_shows_where_it_is_and_a_mistake_does_not(
    ptrees, place, monkeypatch, error: Exception | None, words: str, is_bug: bool
) -> None:
    """The first is a product of matrices that do not fit, inside torch."""

    def fail(*_: object) -> None:
        if error:
            raise error
        torch.zeros(2, 3) @ torch.zeros(2, 3)

    monkeypatch.setattr(TreePredictor, "forward", fail)
    code, _, err = ptrees("evaluate", place / "model.safetensors", "--data", place / "data")
    assert code == 1
    assert words in err
    assert ("Traceback" in err, "please report it" in err) == (is_bug, is_bug)
    assert err.splitlines()[-1].startswith("ptrees evaluate: ")


def test_debug_shows_the_traceback(ptrees, monkeypatch) -> None:
    monkeypatch.setenv("PTREES_DEBUG", "1")
    with pytest.raises(ValueError, match="no model"):
        cli.main(["evaluate", "nothing", "--data", "."])


@pytest.mark.parametrize(
    "words", ["train recipe.toml --device cuda", "bench growth --device cuda:0"]
)
@pytest.mark.parametrize(
    ("build", "fix"), [(None, "is a build without CUDA: install"), ("12.8", "nvidia-smi")]
)
def test_a_gpu_that_is_not_there_is_refused_with_the_fix(
    ptrees, place, monkeypatch, words: str, build: str | None, fix: str
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", build)
    out = ["--out", "run", "--data", "data"] if words.startswith("train") else []
    code, _, err = ptrees(*words.split(), *out)
    assert code == 1
    assert fix in err
    assert "Without the option the best device" in err
    if out:
        assert ptrees(*words.split(), *out, "--dry-run").code == 0


def test_more_gpus_than_there_are_are_refused(ptrees, place, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    code, _, err = ptrees("train", place / "recipe.toml", "--out", "run", "--devices", "2")
    assert (code, "--devices is 2; this computer has 1 CUDA GPUs" in err) == (1, True)


@pytest.mark.parametrize("moment", ["make_parser", "check_hardware"])
def test_stopped_by_hand_it_says_so_at_any_moment(ptrees, monkeypatch, moment: str) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, moment, stop)
    code, _, err = ptrees("demo")
    assert (code, err) == (130, "\nptrees: stopped\n")


def test_stopped_while_torch_loads_there_is_no_traceback(tmp_path: Path) -> None:
    code = """
import sys
class Stop:
    def find_spec(self, name, *_):
        if name == "torch":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Stop())
from posterior_trees.cli import main
main(["demo", "--out", "demo"])
"""
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr.strip()) == (130, "ptrees: stopped")


def test_help_does_not_wait_for_torch(tmp_path: Path) -> None:
    code = "import sys; from posterior_trees.cli import make_parser; make_parser(); "
    code += "assert not {'torch', 'numpy', 'rich'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)


def test_as_a_program_a_mistake_ends_with_one_and_no_traceback(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "posterior_trees", "train", "none.toml", "--out", "run"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 1
    assert done.stderr.startswith("ptrees train: there is no recipe none.toml")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


# ---- what each command does ----------------------------------------------------------------------


def test_a_dry_run_prints_a_recipe_that_parses_back(ptrees, place: Path, tmp_path: Path) -> None:
    recipe, out = place / "recipe.toml", tmp_path / "run"
    changes = ["tree.depth=1", "optimizer.lr=0.5", 'data.augment=["affine"]', "data.name=my set"]
    options = [word for change in changes for word in ("--set", change)]
    code, text, err = ptrees("train", recipe, "--out", out, "--dry-run", *options)
    assert (code, err) == (0, "")
    parsed = parse_recipe(text)
    assert parsed == read_recipe(recipe, changes)
    assert (parsed.tree.depth, parsed.optimizer.lr) == (1, 0.5)
    assert (parsed.data.augment, parsed.data.name) == (("affine",), "my set")
    assert not out.exists()


def test_a_finished_run_says_how_to_go_on_with_the_data_that_were_given(
    ptrees, place, tmp_path, monkeypatch
) -> None:
    (tmp_path / "my data").symlink_to(place / "data")
    changes = ["tree.depth=1", "training.epochs=1", "training.picture_every=0",
               "training.compile=false", "training.calibrate=true"]  # fmt: skip
    options = [word for change in changes for word in ("--set", change)]
    words = ["train", place / "recipe.toml", "--out", tmp_path / "run", *options]
    code, out, err = ptrees(*words, "--data", tmp_path / "my data", "--device", "cpu")
    assert (code, "warning" in err) == (0, False)
    done, calibration = (out.splitlines()[-n] for n in (1, 2))
    assert re.match("calibration (left|changed) the probabilities.* validation images", calibration)
    assert done.endswith(f"ptrees evaluate {tmp_path / 'run'} --data '{tmp_path / 'my data'}')")
    monkeypatch.setenv("PTREES_DATA", str(place / "data"))
    assert ptrees(*words).out.splitlines()[-1].endswith(f"ptrees evaluate {tmp_path / 'run'})")
    code, _, err = ptrees(*words, "--set", "training.epochs=2")
    assert code == 1
    assert f"--from {tmp_path / 'run'}` begins with these weights" in err


def test_a_calibration_is_told_in_one_line() -> None:
    record = {"images": 250, "nll_before": [0.0, 2.5], "nll_after": [0.0, 2.25]}
    kept = describe_calibration({**record, "strength": 1.0, "offsets": [0.0, 0.0]})
    assert kept == (
        "calibration left the probabilities as trained: 250 validation images ask for no change"
    )
    for changed in ({"strength": 0.5, "offsets": [0.0, 0.0]}, {"strength": 1.0, "offsets": [1, 0]}):
        text = describe_calibration(record | changed)
        assert text.endswith(
            "changed the probabilities: NLL of 250 validation images 2.500 → 2.250"
        )


def test_a_camera_s_bits_in_larger_numbers_are_noticed_before_training() -> None:
    dark = torch.full((70, 1, 2, 2), 4095, dtype=torch.int32).to(torch.uint16)
    light = torch.full((70, 1, 2, 2), 30, dtype=torch.uint8)
    assert oddities(ImageSet(light)) == []
    assert "brightest training pixels are 6.2% (x) of white" in oddities(ImageSet(dark, light))[0]
    assert "6.2% (x) and 6.2% (y) of white" in oddities(ImageSet(dark, dark))[0]


def test_images_with_nothing_to_predict_are_noticed_before_training() -> None:
    x = torch.randint(256, (9, 3, 4, 4), dtype=torch.uint8)
    assert oddities(ImageSet(x)) == oddities(ImageSet(x, 255 - x)) == []
    (said,) = oddities(ImageSet(x[:, :1].expand(-1, 3, -1, -1).contiguous()))
    assert "have no colour: their three channels are equal" in said
    assert oddities(ImageSet(x, x)) == [
        "inputs and targets are the same images: there is nothing to predict"
    ]
    x[8] = 255 - x[8]  # one that differs is enough
    other = x.clone()
    other[8] = 0
    assert oddities(ImageSet(x, other)) == []


def test_the_json_of_evaluate_has_exactly_the_documented_keys(ptrees, place, tmp_path) -> None:
    model, file = place / "model.safetensors", tmp_path / "numbers.json"
    code, out, _ = ptrees("evaluate", model, "--data", place / "data", "--json", file)
    assert code == 0
    assert "psnr_hole" in out
    assert "± standard deviation over images" in out
    table = json.loads(file.read_text())
    assert set(table) == {
        *("schema", "model", "task", "split", "n", "branching", "clip", "psnr", "psnr_hole"),
        *("hole_pixels", "nll", "entropy", "leaves", "seconds_per_image", "nfe"),
    }
    assert (table["schema"], table["task"], table["split"]) == (1, "digits_inpaint", "test")
    assert (table["n"], table["branching"], table["clip"]) == (12, [2, 2], False)
    assert (table["hole_pixels"], table["nfe"], table["model"]) == (560, 1, str(model))
    assert table["seconds_per_image"] > 0
    for name in ("psnr", "psnr_hole", "nll", "entropy"):
        assert [row["depth"] for row in table[name]] == [0, 1, 2]
        for row in table[name]:
            assert set(row) == {"depth", "mean", "std", "low", "high"}
            assert row["low"] <= row["mean"] <= row["high"]
    assert table["nll"][0]["mean"] == 0
    assert len(table["leaves"]) == 4
    for leaf in table["leaves"]:
        assert set(leaf) == {"frequency", "probability", "psnr", "root_psnr"}
    for name in ("frequency", "probability"):
        assert sum(leaf[name] for leaf in table["leaves"]) == pytest.approx(1, abs=1e-5)


def test_evaluate_takes_a_run_folder_a_split_and_a_limit(ptrees, place, tmp_path) -> None:
    (tmp_path / "run").mkdir()
    weights = (place / "model.safetensors").read_bytes()
    (tmp_path / "run" / "best.safetensors").write_bytes(weights)
    file = tmp_path / "numbers.json"
    words = ["evaluate", tmp_path / "run", "--data", place / "data", "--json", file]
    assert ptrees(*words, "--split", "train", "--limit", "5").code == 0
    table = json.loads(file.read_text())
    assert (table["split"], table["n"]) == ("train", 5)


def test_the_data_folder_may_come_from_the_environment(ptrees, place, monkeypatch) -> None:
    monkeypatch.setenv("PTREES_DATA", str(place / "data"))
    assert ptrees("evaluate", place / "model.safetensors", "--limit", "2").code == 0


def test_predict_names_what_it_wrote_and_warns_of_a_misfit(ptrees, place, tmp_path) -> None:
    model, out = place / "model.safetensors", tmp_path / "out"
    pictures = [place / name for name in ("dark.png", "light.png", "text.png", "large.jpg")]
    code, text, err = ptrees("predict", model, *pictures, "--out", out, "--resize")
    assert code == 1
    assert text.split("\n")[:-1] == [
        str(out / name) for name in ("index.html", "dark", "light", "large")
    ]
    assert "light.png: the picture may not fit" in err
    assert "Exchanging black and white (--invert) would make it" in err
    assert "large.jpg: cut to its centre and resized from 50×40 to 28×28 (height×width)" in err
    assert err.count("resized from") == 1
    assert "dark.png" not in err
    assert "1 of 4 pictures could not be predicted" in err
    code, _, err = ptrees("predict", model, place / "light.png", "--out", out, "--invert")
    assert (code, err) == (0, "")


def test_figure_draws_the_images_that_are_asked_for(ptrees, place, tmp_path) -> None:
    words = ["figure", place / "model.safetensors", "--data", place / "data"]
    for name, options in (
        ("a.png", ["--limit", 2]),
        ("b.svg", ["--images", 3, 5, 7]),
        ("c.png", ["--limit", 1, "--closer"]),
    ):
        code, out, _ = ptrees(*words, "--out", tmp_path / name, *options)
        assert (code, out.strip()) == (0, str(tmp_path / name))
        assert (tmp_path / name).stat().st_size > 1000
    assert (tmp_path / "b.svg").read_text().count("Mean") == 3


def test_data_lists_the_sets_and_survives_an_empty_or_missing_folder(ptrees, place) -> None:
    for name, state in (("data", "found"), ("empty", "missing"), ("none", "missing")):
        code, out, err = ptrees("data", "--data", place / name)
        assert (code, err) == (0, "")
        row = next(line for line in out.splitlines() if "mnist" in line and "│" in line)
        assert state in row
        assert all(known in out for known in ("faces256", "cats256", "shoes128", "cells"))


def test_options_are_written_out(capsys) -> None:
    with pytest.raises(SystemExit):
        cli.main(["explore", "digits", "--sav", "page.html"])
    assert "--sav" in capsys.readouterr().err
