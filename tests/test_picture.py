"""A user's pictures: whatever they come as, the model sees the same, or says what is wrong."""

import json
import os
import re
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from posterior_trees import (
    Colorize,
    Denoise,
    Downsample,
    Inpaint,
    Paired,
    Tree,
    TreePredictor,
    UNet,
    cli,
    load,
)
from posterior_trees.data import ImageSet
from posterior_trees.data.facts import brightness_range
from posterior_trees.models.card import describe_model
from posterior_trees.pictures import write as predict_module
from posterior_trees.pictures.answer import Answer
from posterior_trees.pictures.reading import Reading, read
from posterior_trees.pictures.write import PictureError, predict_files
from posterior_trees.serve.start import describe_start

HOLE = Inpaint.box((0, 11), (0, 19), (16, 20))


def predictor_of(measurement, channels: int = 1, depth: int = 2, about: dict | None = None):
    """A tiny predictor with random weights."""
    torch.manual_seed(0)
    leaves = 2**depth
    network = UNet(measurement.channels(channels), channels, leaves, width=leaves)
    return TreePredictor(
        network,
        measurement,
        branching=2,
        depth=depth,
        channels=channels,
        multiple=UNet.multiple,
        name="test_task",
        about=about,
    ).eval()


def noise(*shape: int, dtype: type = np.uint8) -> np.ndarray:
    return np.random.default_rng(7).integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


def save(file: Path, pixels: np.ndarray, mode: str | None = None) -> Path:
    image = Image.fromarray(pixels)
    endings = Image.registered_extensions()
    (image.convert(mode) if mode else image).save(file, endings.get(file.suffix, "PNG"))
    return file


def unit(pixels: np.ndarray) -> Tensor:
    return torch.from_numpy(pixels / np.iinfo(pixels.dtype).max)


def as_picture(picture, model) -> Tensor:
    return read(picture, model).pixels


GREY, COLOUR = predictor_of(Denoise(0.1)), predictor_of(Denoise(0.1), channels=3)


# ---- one picture, many clothes ------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_a_grey_picture_is_the_same_as_file_array_and_tensor(tmp_path: Path, dtype: type) -> None:
    pixels = noise(9, 7, dtype=dtype)
    want = unit(pixels)[None, None]
    for picture in (
        save(tmp_path / "a.png", pixels),
        str(save(tmp_path / "a.tif", pixels)),
        pixels,
        pixels[:, :, None],
        pixels.astype(pixels.dtype.newbyteorder(">")),
        np.asfortranarray(pixels),
        unit(pixels).numpy(),
        unit(pixels).numpy().astype(np.longdouble),
        unit(pixels),
        unit(pixels)[None],
        want,
        torch.from_numpy(pixels),
    ):
        got = as_picture(picture, GREY)
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.double(), want, rtol=0, atol=1e-7)


@pytest.mark.parametrize("ending", ["png", "bmp", "tif", "webp"])
def test_a_colour_picture_is_the_same_as_file_and_array(tmp_path: Path, ending: str) -> None:
    pixels = noise(9, 7, 3)
    file = tmp_path / f"a.{ending}"
    Image.fromarray(pixels).save(file, **({"lossless": True} if ending == "webp" else {}))
    want = unit(pixels).permute(2, 0, 1)[None]
    for picture in (file, pixels, pixels[::-1][::-1], want, (want * 255).round().byte()[0]):
        got = as_picture(picture, COLOUR).double()
        torch.testing.assert_close(got, want, rtol=0, atol=1e-7)


def test_grey_is_copied_into_the_channels_of_a_colour_model(tmp_path: Path) -> None:
    pixels = noise(9, 7)
    want = unit(pixels).expand(1, 3, 9, 7)
    for picture in (save(tmp_path / "a.png", pixels), pixels, torch.from_numpy(pixels)):
        got = as_picture(picture, COLOUR).double()
        torch.testing.assert_close(got, want, rtol=0, atol=1e-7)


def test_colour_becomes_grey_as_when_training_files_are_read(tmp_path: Path) -> None:
    pixels = noise(9, 7, 3)
    read = unit(np.asarray(Image.fromarray(pixels).convert("L")))[None, None]
    file = save(tmp_path / "a.png", pixels)
    torch.testing.assert_close(as_picture(file, GREY).double(), read, rtol=0, atol=1e-7)
    # Pillow rounds to 8 bits, an array is not rounded.
    torch.testing.assert_close(as_picture(pixels, GREY).double(), read, rtol=0, atol=1.01 / 255)


def test_transparent_pixels_are_laid_on_white(tmp_path: Path) -> None:
    pixels = noise(9, 7, 4)
    pixels[0] = (10, 20, 30, 0)
    file, array = (as_picture(p, COLOUR) for p in (save(tmp_path / "a.png", pixels), pixels))
    assert (array[0, :, 0] == 1).all()
    torch.testing.assert_close(file, array, rtol=0, atol=1.01 / 255)


def test_a_palette_picture_is_read_as_its_colours(tmp_path: Path) -> None:
    file = save(tmp_path / "a.png", noise(9, 7, 3), "P")
    want = np.asarray(Image.open(file).convert("RGB"))
    got = as_picture(file, COLOUR).double()
    torch.testing.assert_close(got, unit(want).permute(2, 0, 1)[None], rtol=0, atol=1e-7)


def test_colourisation_takes_colour_or_grey_and_keeps_its_mean(tmp_path: Path) -> None:
    model = predictor_of(Colorize(), channels=3).double()
    colour, grey = noise(9, 7, 3), noise(9, 7)
    for picture, mean in (
        (save(tmp_path / "colour.png", colour), unit(colour).mean(2)),
        (colour, unit(colour).mean(2)),
        (unit(colour).permute(2, 0, 1), unit(colour).mean(2)),
        (save(tmp_path / "grey.png", grey), unit(grey)),
        (grey, unit(grey)),
        (unit(grey)[None], unit(grey)),
    ):
        tree = model.predict(picture)
        for level in tree.images:
            seen = level.mean(dim=2)
            want = mean.expand_as(seen).to(seen.dtype)
            torch.testing.assert_close(seen, want, rtol=0, atol=1e-6)


# ---- what does not fit ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "shape", "numbers"),
    [
        (GREY, (3, 9, 7), "3 channels.* takes 1;"),
        (COLOUR, (2, 1, 9, 7), "1 channel, .* takes 3;"),
        (COLOUR, (9, 7, 3), "9 channels.* takes 3;"),
        (predictor_of(Colorize(), 3), (2, 9, 7), "2 channels.* takes 3 or 1;"),
        (predictor_of(Paired(3, 1), 3), (3, 9, 7), "3 channels.* takes 1;"),
    ],
)
def test_a_tensor_of_wrong_channels_is_refused_with_both_numbers(model, shape, numbers) -> None:
    with pytest.raises(ValueError, match=numbers):
        as_picture(torch.rand(shape), model)


@pytest.mark.parametrize(
    ("picture", "words"),
    [
        (np.full((9, 7), np.nan), "63 of 63 pixels are NaN or infinite"),
        (torch.full((9, 7), torch.inf), "63 of 63 pixels are NaN or infinite"),
        (np.full((9, 7), 255.0), "from 255 to 255, the limits are 0 and 1: divide by 255"),
        (torch.full((9, 7), -1.0), r"from -1 to -1.*\(x \+ 1\) / 2"),
        (torch.full((9, 7), 1.002), "to 1.002"),
        (np.zeros((9, 7), np.int64), "int64; give uint8, uint16 or float"),
        (torch.zeros(9, 7, dtype=torch.bool), "bool; give uint8, uint16 or float"),
        (np.zeros((9, 7, 2)), r"shape \(9, 7, 2\)"),
        (np.zeros((1, 3, 9, 7)), r"shape \(1, 3, 9, 7\)"),
        (np.zeros((0, 7)), r"shape \(0, 7\)"),
        (torch.zeros(7), r"shape \(7,\)"),
        (torch.zeros(0, 1, 9, 7), r"shape \(0, 1, 9, 7\)"),
    ],
)
def test_bad_pixels_are_refused_with_value_limit_and_fix(picture, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        as_picture(picture, predictor_of(Downsample(2)))


def test_rounding_errors_beyond_the_limits_are_forgiven_and_clamped() -> None:
    got = as_picture(torch.tensor([[-0.0009, 1.0009]]), predictor_of(Downsample(2)))
    assert got.flatten().tolist() == [0.0, 1.0]


def test_a_noisy_measurement_may_leave_the_range_as_far_as_noise_goes() -> None:
    noisy = torch.tensor([[-0.4, 1.4]])
    assert torch.equal(as_picture(noisy, GREY), noisy[None, None])
    with pytest.raises(ValueError, match=r"limits are -0.8 and 1.8: divide by 255"):
        as_picture(noisy * 255, GREY)


def test_another_size_than_the_masks_is_refused_with_both_sizes(tmp_path: Path) -> None:
    model = predictor_of(HOLE)
    file = save(tmp_path / "photo.png", noise(40, 40))
    for picture, name in ((file, "photo.png"), (noise(40, 40), "the picture")):
        with pytest.raises(ValueError, match=f"{name} is 40×40.* 16×20.*--resize"):
            as_picture(picture, model)
    assert read(file, model, Reading(resize=True)).pixels.shape == (1, 1, 16, 20)


@pytest.mark.parametrize("name", ["missing.png", "truncated.png", "text.png", "."])
def test_a_file_that_is_no_picture_is_named(tmp_path: Path, name: str) -> None:
    save(tmp_path / "whole.png", noise(40, 40))
    (tmp_path / "truncated.png").write_bytes((tmp_path / "whole.png").read_bytes()[:200])
    (tmp_path / "text.png").write_text("no picture")
    with pytest.raises(ValueError, match=re.escape(str(tmp_path / name))):
        as_picture(tmp_path / name, GREY)


# ---- the tree of a picture -----------------------------------------------------------------------


@pytest.mark.parametrize("size", [(1, 1), (3, 50), (17, 16), (33, 20)])
@pytest.mark.parametrize("padding", ["reflect", "zeros"])
def test_any_size_comes_back_as_it_was(size: tuple[int, int], padding: str) -> None:
    for measurement, factor in ((Denoise(0.1), 1), (Downsample(2), 2), (Paired(1, 1), 1)):
        model = predictor_of(measurement)
        model.padding = padding
        tree = model.predict(np.full(size, 0.5))
        assert tuple(tree.shape) == (1, factor * size[0], factor * size[1])
        assert tree.leaves.isfinite().all()


def test_every_node_shows_the_visible_pixels_and_never_the_hidden_ones() -> None:
    model = predictor_of(HOLE).double()
    picture = torch.rand(16, 20, dtype=torch.float64).float()
    tree = model.predict(picture)
    for level in tree.images:
        seen = level[..., ~HOLE.hole]
        assert torch.equal(seen, picture[~HOLE.hole].to(seen.dtype).expand_as(seen))
    cheat = torch.where(HOLE.hole, 1 - picture, picture)
    assert torch.equal(model.predict(cheat).leaves, tree.leaves)


# ---- brightness ----------------------------------------------------------------------------------


def test_the_brightness_range_is_that_of_the_measurements() -> None:
    values = torch.arange(1001) % 251
    x = values.byte().reshape(-1, 1, 1, 1).expand(-1, 1, 16, 20).contiguous()
    hidden = HOLE.hole.double().mean().item()
    means = hidden * 0.5 + (1 - hidden) * values.double() / 255
    want = means.quantile(torch.tensor([0.001, 0.999]).double()).tolist()
    assert brightness_range(ImageSet(x), HOLE) == pytest.approx(want, abs=1e-6)
    pairs = ImageSet(x, torch.full_like(x, 51))
    assert brightness_range(pairs, Paired(1, 1)) == pytest.approx([0.2, 0.2], abs=1e-6)
    assert brightness_range(ImageSet(x), HOLE, limit=1) == pytest.approx([hidden / 2] * 2, abs=1e-6)


# ---- files ---------------------------------------------------------------------------------------


def contents(folder: Path) -> set[str]:
    return {file.relative_to(folder).as_posix() for file in folder.rglob("*")}


def test_predict_files_writes_the_tree_in_every_form(tmp_path: Path) -> None:
    model = predictor_of(Denoise(0.1), channels=3)
    file = save(tmp_path / "photo.png", noise(9, 7, 3))
    out = tmp_path / "deep" / "out"
    assert predict_files(model, [file], out) == [out / "index.html", out / "photo"]
    names = {"root", "0", "1", "0.0", "0.1", "1.0", "1.1"}
    files = {f"node_{name}.png" for name in names} | {"tree.png", "tree.json", "tree.safetensors"}
    assert contents(out) == {"index.html", "photo"} | {f"photo/{name}" for name in files}
    tree, want = Tree.load(out / "photo" / "tree.safetensors"), model.predict(file)
    assert torch.equal(tree.leaves, want.leaves)
    table = json.loads((out / "photo" / "tree.json").read_text())
    assert (table["schema"], table["branching"], table["size"]) == (1, [2, 2], [9, 7])
    for node in table["nodes"]:
        image, prob = tree.node(node["path"]).image[0], tree.node(node["path"]).prob.item()
        assert node["probability"] == pytest.approx(prob, abs=1e-7)
        stored = np.asarray(Image.open(out / "photo" / node["image"]))
        shown = (image.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy()
        assert np.array_equal(stored, shown)


def test_the_page_cites_the_paper_and_names_the_model_as_the_explorer_does(tmp_path: Path) -> None:
    model = predictor_of(Denoise(0.1), about={"version": "9.8", "date": "2024-12-10"})
    file = save(tmp_path / "a.png", noise(8, 8))
    page, _ = predict_files(model, [file], tmp_path / "out")
    found = re.search(r'id="trees">(.*?)</script>', page.read_text("utf-8"), re.DOTALL)
    assert found is not None
    card = json.loads(found[1])["model"]
    assert card == describe_model(model)
    assert "NeurIPS 2024" in card["method"]
    assert "version 9.8, date 2024-12-10" in card["origin"]


def examples_of(page: Path) -> list[dict]:
    found = re.search(r'id="trees">(.*?)</script>', page.read_text("utf-8"), re.DOTALL)
    assert found is not None
    return json.loads(found[1])["examples"]


@pytest.mark.parametrize("measurement", [HOLE, Colorize()], ids=["hole", "colour"])
def test_a_picture_that_shows_what_was_hidden_is_kept_as_the_model_took_it(
    measurement, tmp_path: Path
) -> None:
    channels, pixels = (1, noise(16, 20)) if measurement is HOLE else (3, noise(9, 7, 3))
    model = predictor_of(measurement, channels)
    file = save(tmp_path / "a.png", pixels)
    page, folder = predict_files(model, [file], tmp_path / "out", Reading.of(invert=True))
    assert np.array_equal(np.asarray(Image.open(folder / "picture.png")), 255 - pixels)
    assert json.loads((folder / "tree.json").read_text())["shows_hidden"] == "picture.png"
    (example,) = examples_of(page)
    (explored,) = describe_start(model, [file], Reading.of(resize=True, invert=True), warn=print)
    for key in ("input", "truth", "truth_path"):
        assert example[key] == explored[key], key


@pytest.mark.parametrize(
    "measurement", [Denoise(0.1), Downsample(2), Paired(1, 1)], ids=lambda m: type(m).__name__
)
def test_a_picture_that_is_the_measurement_shows_nothing_hidden(
    measurement, tmp_path: Path
) -> None:
    file = save(tmp_path / "a.png", noise(16, 20))
    page, folder = predict_files(predictor_of(measurement), [file], tmp_path / "out")
    assert not (folder / "picture.png").exists()
    assert "shows_hidden" not in json.loads((folder / "tree.json").read_text())
    assert examples_of(page)[0]["truth"] is None


def test_what_was_never_there_is_no_truth(tmp_path: Path) -> None:
    """A grey photograph has no colour to lose, and a blank hole hides nothing. The page may show
    them beside pictures that do."""
    blank, pixels = noise(16, 20), noise(16, 20)
    blank[HOLE.hole.numpy()] = 250
    grey = noise(9, 7)
    for model, pair in (
        (predictor_of(HOLE), (blank, pixels)),
        (predictor_of(Colorize(), 3), (grey, noise(20, 7, 3))),
    ):
        out = tmp_path / type(model.measurement).__name__
        files = [save(tmp_path / f"{n}.png", p) for n, p in zip("ab", pair, strict=True)]
        page, nothing, something = predict_files(model, files, out)
        assert [bool(example["truth"]) for example in examples_of(page)] == [False, True]
        assert not (nothing / "picture.png").exists()
        assert (something / "picture.png").is_file()


def test_predicting_again_takes_away_a_picture_that_shows_nothing_any_more(tmp_path: Path) -> None:
    model, out = predictor_of(HOLE, depth=1), tmp_path / "out"
    predict_files(model, [save(tmp_path / "a.png", noise(16, 20))], out)
    assert (out / "a" / "picture.png").is_file()
    predict_files(model, [save(tmp_path / "a.png", np.full((16, 20), 9, np.uint8))], out)
    assert not (out / "a" / "picture.png").exists()


def test_inverting_exchanges_black_and_white(tmp_path: Path) -> None:
    model, pixels = predictor_of(Denoise(0.1)), noise(9, 7)
    predict_files(
        model, [save(tmp_path / "a.png", pixels)], tmp_path / "out", Reading.of(invert=True)
    )
    tree = Tree.load(tmp_path / "out" / "a" / "tree.safetensors")
    torch.testing.assert_close(tree.leaves, model.predict(255 - pixels).leaves)


def test_equal_stems_do_not_overwrite_each_other(tmp_path: Path) -> None:
    model, files = predictor_of(Denoise(0.1), depth=1), []
    for i, name in enumerate(("a/x.png", "b/x.png", "x.tif", "X-2.png", "..png", "index.html.png")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        files.append(save(tmp_path / name, np.full((4 + i, 5), 40 * i, np.uint8)))
    _, *folders = predict_files(model, files, tmp_path / "out")
    names = ["x", "x-2", "x-3", "X-2-2", "picture", "index.html-2"]
    assert [folder.name for folder in folders] == names
    for i, folder in enumerate(folders):
        assert json.loads((folder / "tree.json").read_text())["size"] == [4 + i, 5]


def test_predicting_again_replaces_the_tree_and_spares_other_folders(tmp_path: Path) -> None:
    file, out = save(tmp_path / "x.png", noise(9, 7)), tmp_path / "out"
    (out / "y").mkdir(parents=True)
    (out / "y" / "tree.png").write_text("mine")
    other = save(tmp_path / "y.png", noise(9, 7))
    predict_files(GREY, [file, other], out)
    (out / "x" / "notes.txt").write_text("mine too")
    predict_files(predictor_of(Denoise(0.1), depth=1), [file, other], out)
    assert {"x", "y", "y-2", "index.html"} == {path.name for path in out.iterdir()}
    nodes = {path.name for path in (out / "x").glob("node_*")}
    assert nodes == {"node_root.png", "node_0.png", "node_1.png"}
    assert (out / "y" / "tree.png").read_text() == "mine"
    assert (out / "x" / "notes.txt").read_text() == "mine too"


def test_bad_files_are_all_named_and_the_good_ones_done(tmp_path: Path) -> None:
    good = save(tmp_path / "good.png", noise(16, 20))
    (tmp_path / "text.png").write_text("no picture")
    bad = [tmp_path / "missing.png", tmp_path / "text.png", save(tmp_path / "s.png", noise(9, 7))]
    out = tmp_path / "out"
    with pytest.raises(PictureError, match="3 of 4 pictures") as caught:
        predict_files(predictor_of(HOLE), [bad[0], good, *bad[1:]], out)
    assert all(str(file) in str(caught.value) for file in bad)
    assert caught.value.written == [out / "index.html", out / "good"]
    assert {path.name for path in out.iterdir()} == {"index.html", "good"}
    with pytest.raises(PictureError, match="1 of 1"):
        predict_files(predictor_of(HOLE), [bad[0]], tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_an_interrupted_or_failed_prediction_leaves_no_empty_folder(tmp_path: Path) -> None:
    file, out = save(tmp_path / "a.png", noise(9, 7)), tmp_path / "deep" / "out"

    def interrupt(made: Answer, folder: Path, facts: dict) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predict_files(GREY, [file], out, also=interrupt)
    with pytest.raises(PictureError):
        predict_files(GREY, [tmp_path / "missing.png"], out)
    assert not (tmp_path / "deep").exists()
    out.mkdir(parents=True)  # somebody's own empty folder stays
    with pytest.raises(KeyboardInterrupt):
        predict_files(GREY, [file], out, also=interrupt)
    assert not list(out.iterdir())
    predict_files(GREY, [file], tmp_path / "new" / "out")
    with pytest.raises(KeyboardInterrupt):
        predict_files(GREY, [file], tmp_path / "new" / "out", also=interrupt)
    assert (tmp_path / "new" / "out" / "a" / "tree.json").is_file()


def test_results_appear_one_by_one_and_the_page_grows(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(predict_module, "PAGE_EVERY", 0)
    files = [save(tmp_path / f"{name}.png", noise(9, 7)) for name in "abc"]
    out, seen = tmp_path / "out", []

    def look(made: Answer, folder: Path, facts: dict) -> None:
        visible = [path for path in sorted(out.glob("*")) if not path.name.startswith(".")]
        page = (out / "index.html").read_text("utf-8") if visible else ""
        seen.append(([path.name for path in visible], [f'"name":"{n}"' in page for n in "abc"]))

    predict_files(GREY, files, out, also=look)
    assert [names for names, _ in seen] == [[], ["a", "index.html"], ["a", "b", "index.html"]]
    assert [sum(listed) for _, listed in seen] == [0, 1, 2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("moment", ["a", "b", "replacing"])
def test_killed_at_any_moment_each_result_is_there_or_not(
    moment: str, tmp_path: Path, monkeypatch
) -> None:
    files = [save(tmp_path / f"{name}.png", noise(9, 7)) for name in "ab"]
    out = tmp_path / "new" / "out"
    if moment == "replacing":
        predict_files(GREY, files, out)
        (out / "a" / "notes.txt").write_text("somebody's")

    def kill(made: Answer, folder: Path, facts: dict) -> None:
        if folder.name == moment:
            kill_now()

    def kill_now() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if not (pid := os.fork()):
        if moment == "replacing":
            rename = os.rename
            swap = lambda *pair: rename(*pair) if ".old" in str(pair[1]) else kill_now()  # noqa: E731
            monkeypatch.setattr(os, "rename", swap)
        predict_files(GREY, files, out, also=kill)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert (tmp_path / "new").exists() == (moment != "a")
    if moment == "b":
        assert {path.name for path in out.iterdir()} >= {"a", "index.html"}
    for folder in (path for path in out.glob("[a-z]") if path.is_dir()):
        assert len(list(folder.iterdir())) >= 6
    predict_files(GREY, files, out)
    assert contents(out) >= {"index.html", "a/tree.json", "b/tree.json"}
    assert not [path for path in tmp_path.rglob("*") if ".stage" in path.name]
    if moment == "replacing":
        assert (out / "a" / "notes.txt").read_text() == "somebody's"


@pytest.mark.parametrize("is_new", [True, False])
def test_of_two_at_once_one_writes_and_its_tables_are_its_own(
    is_new: bool, tmp_path: Path, capsys
) -> None:
    """The other is told who writes, before it does anything; also where the folder is not there."""
    file, out, said = save(tmp_path / "a.png", noise(28, 28)), tmp_path / "new" / "out", []
    line = ["predict", "digits", str(file), "--out", str(out)]

    def another(made: Answer, folder: Path, facts: dict) -> None:
        thread = threading.Thread(target=refused, daemon=True)
        thread.start()
        thread.join()

    def refused() -> None:
        with pytest.raises(SystemExit):
            cli.main(line)
        said.append(capsys.readouterr().err)

    if not is_new:
        cli.main(line)
    predict_files(load("digits"), [file], out, also=another)
    assert f"{out} is being written by process {os.getpid()}, since" in said[0]
    cli.main(line)
    assert len((out / "fields.csv").read_text().splitlines()) == 2


def test_the_command_prints_no_line_where_it_wrote_nothing(tmp_path: Path, capsys) -> None:
    with pytest.raises(SystemExit):
        cli.main(["predict", "digits", str(tmp_path / "no.png"), "--out", str(tmp_path / "out")])
    said = capsys.readouterr()
    assert said.out == ""
    assert "1 of 1 picture could not be predicted" in said.err
    assert not (tmp_path / "out").exists()


def test_a_failure_while_writing_leaves_nothing_half_written(tmp_path: Path, monkeypatch) -> None:
    files = [save(tmp_path / f"{name}.png", noise(9, 7)) for name in "ab"]

    def fail(folder: Path, tree: Tree) -> list[dict]:
        if "b" in folder.name:
            raise OSError("No space left on device")
        return []

    monkeypatch.setattr("posterior_trees.pictures.folder._write_nodes", fail)
    with pytest.raises(PictureError, match=r"b\.png: No space left"):
        predict_files(GREY, files, tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"index.html", "a"}


def test_pictures_of_all_sizes_share_one_page(tmp_path: Path) -> None:
    sizes = [(9, 7), (700, 30), (20, 40)]
    files = [save(tmp_path / f"{h}.png", np.full((h, w), 99, np.uint8)) for h, w in sizes]
    page, *_ = predict_files(predictor_of(Downsample(2), depth=1), files, tmp_path / "out")
    text = re.search(r'id="trees">(.*?)</script>', page.read_text("utf-8"), re.DOTALL)
    assert text is not None
    content = json.loads(text[1])
    assert [example["size"] for example in content["examples"]] == [[18, 14], [512, 22], [40, 80]]
    assert [example["name"] for example in content["examples"]] == ["9", "700", "20"]
    nodes = Image.open(tmp_path / "out" / "700" / "node_0.png")
    assert nodes.size == (60, 1400)


def test_a_misfit_is_warned_about_and_predicted_all_the_same(tmp_path: Path) -> None:
    model = predictor_of(Denoise(0.1), about={"input_brightness": [0.0, 0.1]})
    file, heard = save(tmp_path / "light.png", np.full((9, 7), 255, np.uint8)), []
    assert predict_files(model, [file], tmp_path / "out", warn=heard.append)
    assert len(heard) == 1
    assert str(file) in heard[0]
    assert "--invert" in heard[0]


def test_what_was_warned_of_stands_on_the_page_and_in_the_table(tmp_path: Path) -> None:
    model = predictor_of(HOLE, about={"input_brightness": [0.0, 0.6]})
    light, dark = (
        save(tmp_path / f"{name}.png", np.full((32, 40), value, np.uint8))
        for name, value in (("light", 255), ("dark", 9))
    )
    heard: list[str] = []
    page, *folders = predict_files(
        model, [light, dark], tmp_path / "out", Reading(resize=True), warn=heard.append
    )
    tables = [json.loads((folder / "tree.json").read_text()) for folder in folders]
    for table, example in zip(tables, examples_of(page), strict=True):
        assert table["resized"] == "resized from 32×40 to 16×20 (height×width)"
        assert example["resized"] == table["resized"]
        assert example["note"] == table.get("note", "")
    assert heard[0] == f"{light}: {tables[0]['resized']}. {tables[0]['note']}"  # at once
    assert len(heard) == 2
    assert "note" not in tables[1]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"file.*choose another --out"):
        predict_files(GREY, [], tmp_path / "file" / "out")
