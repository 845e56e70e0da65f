"""The explorer's server: right answers, and readable refusals for everything else."""

import asyncio
import base64
import io
import json
import re
import socket
import struct
import sys
import threading
import time
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

from posterior_trees import (
    Colorize,
    Denoise,
    Downsample,
    Inpaint,
    Paired,
    Tree,
    TreePredictor,
    grow,
    load,
)
from posterior_trees.cli import main
from posterior_trees.explore.export import SERVED
from posterior_trees.models.checkpoint import save_model
from posterior_trees.networks.head import Leaves
from posterior_trees.pictures.reading import Reading
from posterior_trees.serve.ask import Limits
from posterior_trees.serve.guard import RefusedError, allowed_hosts
from posterior_trees.serve.listen import listen, serve
from posterior_trees.serve.server import make_app
from posterior_trees.serve.start import describe_start
from posterior_trees.serve.worker import Worker

HOME = "http://127.0.0.1:8765"
HOLE = Inpaint.box((0, 4), (0, 7), (8, 8))


class Shades(torch.nn.Module):
    """A network whose four leaves are plain greys, with probabilities 0.1 to 0.4."""

    def __init__(self, channels: int = 1) -> None:
        super().__init__()
        self.shades = torch.nn.Parameter(torch.tensor([-0.3, -0.1, 0.1, 0.3]))
        self.channels = channels
        self.threads: list[str] = []

    def forward(self, y: torch.Tensor) -> Leaves:
        self.threads.append(threading.current_thread().name)
        shape = (len(y), 4, self.channels, *y.shape[-2:])
        images = self.shades.reshape(1, 4, 1, 1, 1).expand(shape)
        return Leaves(images, torch.tensor([0.1, 0.2, 0.3, 0.4]).log().expand(len(y), 4))


def make_predictor(measurement: Any = HOLE, channels: int = 1, **options: Any) -> TreePredictor:
    return TreePredictor(
        Shades(channels), measurement, branching=2, depth=2, channels=channels, **options
    ).eval()


def png(pixels: np.ndarray, form: str = "PNG") -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, format=form)
    return stream.getvalue()


def picture(height: int = 8, width: int = 8) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width), dtype=np.uint8)


def bomb(width: int, height: int) -> bytes:
    """A PNG whose header promises far more pixels than its few bytes hold."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + check

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    body = zlib.compress(b"\0" * 10_000)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")
    )


def talk(app: Any, conversation: Callable[[Any], Awaitable[Any]], **options: Any) -> Any:
    async def run() -> Any:
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url=HOME, **options) as client:
            return await conversation(client)

    return asyncio.run(run())


def post(app: Any, content: bytes, query: str = "clean=1", **options: Any) -> Any:
    return talk(app, lambda c: c.post(f"/api/predict?{query}", content=content, **options))


def get(app: Any, path: str, **options: Any) -> Any:
    return talk(app, lambda c: c.get(path, **options))


def pixels_of(url: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(url.split(",")[1]))))


# ---- what it is for -------------------------------------------------------------------------


def test_a_picture_comes_back_as_the_model_s_own_tree_of_it() -> None:
    predictor, pixels = make_predictor(), picture()
    answer = post(make_app(predictor), png(pixels), "clean=1&name=mine").json()
    x = torch.from_numpy(pixels)[None, None].float() / 255
    tree = predictor(predictor.measure(x))
    assert answer["name"] == "mine"
    assert answer["size"] == [8, 8]
    assert answer["truth_path"] == tree.descend(x)[0].tolist()
    assert np.array_equal(pixels_of(answer["truth"]), pixels)
    assert np.array_equal(pixels_of(answer["input"])[5:], pixels[5:])
    assert (pixels_of(answer["input"])[:5] == 128).all()
    for level, nodes in enumerate(answer["levels"]):
        assert [node["p"] for node in nodes] == pytest.approx(tree.probs[level][0].tolist())
        for node, image in zip(nodes, tree.images[level][0], strict=True):
            expected = (image.clamp(0, 1) * 255).round().byte().numpy()[0]
            assert np.array_equal(pixels_of(node["image"]), expected)


def test_a_measurement_has_no_truth() -> None:
    answer = post(make_app(make_predictor()), png(picture()), "clean=0").json()
    assert (answer["truth"], answer["truth_path"]) == (None, None)


def test_inverting_exchanges_black_and_white() -> None:
    pixels = picture()
    answer = post(make_app(make_predictor()), png(pixels), "clean=1&invert=1").json()
    assert np.array_equal(pixels_of(answer["truth"]), 255 - pixels)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "TIFF", "BMP", "WEBP", "GIF"])
def test_every_usual_format_is_taken_and_fitted_to_the_mask(form: str) -> None:
    response = post(make_app(make_predictor()), png(picture(30, 17), form), "resize=1")
    assert response.status_code == 200
    assert response.json()["size"] == [8, 8]


def test_large_pictures_are_predicted_whole_and_shown_small() -> None:
    app = make_app(make_predictor(Paired(1, 1), about={}))
    answer = post(app, png(np.full((700, 40), 99, np.uint8)), "").json()
    assert (answer["size"], answer["resized"]) == ([512, 29], "")
    assert pixels_of(answer["levels"][0][0]["image"]).shape == (512, 29)
    assert pixels_of(answer["input"]).shape == (512, 29)


def test_more_tiles_than_the_page_takes_are_refused_with_the_command_to_run() -> None:
    wide = np.zeros((8, 512 * 512 // 8 + 1), np.uint8)
    for measurement, most, query in (
        (Paired(1, 1), 1, ""), (Downsample(2), 4, ""), (Downsample(2), 1, "clean=1")
    ):  # fmt: skip
        app = make_app(make_predictor(measurement), limits=Limits(tiles=most))
        response = post(app, png(wide if query == "" else np.vstack([wide, wide])), query)
        assert response.status_code == 422
        assert re.search(r"the page takes \d\. `ptrees predict", response.json()["error"])
    scaled = post(make_app(make_predictor(Paired(1, 1))), png(picture(500, 500)), "scale=16")
    assert "8000×8000 = 64 megapixels, the limit is 40" in scaled.json()["error"]


def test_a_clean_picture_is_cut_to_what_blocks_divide() -> None:
    app = make_app(make_predictor(Downsample(4)))
    answer = post(app, png(picture(43, 25)), "clean=1").json()
    assert answer["size"] == [40, 24]
    assert np.array_equal(pixels_of(answer["truth"]), picture(43, 25)[1:41, :24])
    response = post(app, png(picture(3, 9)), "clean=1")
    assert "it must have at least 4 pixels a side" in response.json()["error"]
    assert post(app, png(picture(3, 9)), "").json()["size"] == [12, 36]


def test_colour_models_take_grey_and_colour_pictures() -> None:
    app = make_app(make_predictor(Colorize(), channels=3))
    grey = post(app, png(picture())).json()
    assert grey["truth"] is None  # without colour it is a measurement already
    colour = np.random.default_rng(1).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    answer = post(app, png(colour)).json()
    assert np.array_equal(pixels_of(answer["truth"]), colour)
    assert pixels_of(answer["input"]).ndim == 2


def test_noise_is_added_to_a_clean_picture_only() -> None:
    app = make_app(make_predictor(Denoise(0.2)))
    measured = post(app, png(picture()), "clean=0").json()
    assert np.array_equal(pixels_of(measured["input"]), picture())
    degraded = post(app, png(picture()), "clean=1").json()
    assert not np.array_equal(pixels_of(degraded["input"]), picture())
    assert np.array_equal(pixels_of(degraded["truth"]), picture())


def test_a_model_of_pairs_takes_measurements_and_says_so() -> None:
    app = make_app(make_predictor(Paired(1, 1)))
    assert post(app, png(picture()), "clean=0").status_code == 200
    response = post(app, png(picture()), "clean=1")
    assert response.status_code == 422
    assert "trained on pairs" in response.json()["error"]
    assert '"action":null' in get(app, "/").text


def test_a_picture_unlike_the_training_data_gets_a_note() -> None:
    about = {"input_brightness": [0.3, 0.5]}
    app = make_app(make_predictor(about=about))
    dark, white = np.zeros((8, 8), np.uint8), np.full((8, 8), 255, np.uint8)
    assert post(app, png(dark)).json()["note"] == ""
    assert "0.688" in post(app, png(white)).json()["note"]


def test_the_note_suggests_only_what_helps_and_the_terminal_says_the_same(tmp_path: Path) -> None:
    predictor = make_predictor(Paired(1, 1), about={"input_brightness": [0.3, 0.5]})
    heard: list[str] = []
    for name, pixels in {"light": 166, "white": 255}.items():
        file = tmp_path / f"{name}.png"
        file.write_bytes(png(np.full((8, 8), pixels, np.uint8)))
        (example,) = describe_start(predictor, [file], warn=heard.append)
        note = post(make_app(predictor), file.read_bytes(), "clean=0").json()["note"]
        assert heard[-1] == f"{file}: {note}"
        assert example["note"] == note
        assert ("Exchanging black and white" in note) == (name == "light")
        assert ("may mean nothing" in note) == (name == "white")


@pytest.mark.parametrize("kind", [np.uint16, np.float32])
def test_levels_and_gamma_are_those_of_the_command_line(kind: type) -> None:
    stored = np.linspace(100, 2700, 64).reshape(8, 8).round().astype(kind)
    app = make_app(make_predictor(Paired(1, 1)))
    answer = post(app, png(stored, "TIFF"), "levels=150,2600&gamma=0.5").json()
    want = np.sqrt(((stored.astype(float) - 150) / 2450).clip(0, 1)) * 255
    assert np.abs(pixels_of(answer["input"]) - want).max() <= 0.51


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("levels=9,3", "the levels are 9 and 3; the first must be the lower"),
        ("levels=3", "the levels are 3; give two numbers"),
        ("levels=?,3", "levels are two numbers LO,HI"),
        ("levels=0,inf", "give two numbers"),
        ("gamma=0", "gamma is 0; it must be positive"),
        ("gamma=x", "gamma is one"),
        ("scale=x", "the scale is one number"),
        ("scale=99", "the scale is 99; it must be from"),
    ],
)
def test_wrong_levels_get_a_readable_reason(query: str, words: str) -> None:
    response = post(make_app(make_predictor()), png(picture()), query)
    assert response.status_code == 422
    assert words in response.json()["error"]


def test_the_page_proposes_what_the_command_line_said() -> None:
    app = make_app(make_predictor(), reading=Reading.of(levels=(150, 2600), gamma=0.5, invert=True))
    assert '"levels":[150,2600],"gamma":0.5,"invert":true' in get(app, "/").text
    assert '"levels":null,"gamma":1.0,"invert":false' in get(make_app(make_predictor()), "/").text


def test_a_picture_is_taken_at_the_scale_that_is_asked_for() -> None:
    pairs = make_predictor(Paired(1, 1))
    assert '"scale":0.5' in get(make_app(pairs, reading=Reading(scale=0.5)), "/").text
    assert '"scale":null' in get(make_app(make_predictor()), "/").text  # it has a mask
    found = post(make_app(pairs), png(np.full((20, 30), 90, np.uint8)), "scale=1.5").json()
    assert found["size"] == [30, 45]
    assert found["resized"] == "resized from 20×30 to 30×45 (height×width)"


def test_a_digit_is_looked_for_only_where_the_model_is_of_digits() -> None:
    digits = make_predictor(Inpaint.box((0, 19), (0, 27), (28, 28)))
    assert '"digit":null' in get(make_app(digits), "/").text, "28×28 pixels alone say nothing"
    digits.about = {"card": {"importer": "digit"}}
    for proposed, words in ((False, '"digit":false'), (True, '"digit":true')):
        assert words in get(make_app(digits, reading=Reading.of(digit=proposed)), "/").text
    assert (
        '"digit":null' in get(make_app(make_predictor(), reading=Reading.of(digit=True)), "/").text
    )
    photo = np.full((90, 120), 180, np.uint8)
    photo[20:60, 30:38] = 20  # a one
    found = post(make_app(digits), png(photo), "clean=1&digit=1").json()
    assert found["resized"] == "the digit found in 90×120 (height×width)"
    one = pixels_of(found["truth"]) / 255
    assert one.sum(axis=0).max() == pytest.approx(20, abs=0.1)
    assert one.sum(axis=1).max() == pytest.approx(4, abs=0.1)
    for app, query, words in (
        (make_app(make_predictor()), "&clean=1", "predicts 8×8 in grey: leave --digit out"),
        (make_app(digits), "&clean=1&invert=1", "by itself: leave --invert out"),
        (make_app(digits), "&clean=0", "by itself: leave --measured out"),
    ):
        response = post(app, png(photo), f"digit=1{query}")
        assert response.status_code == 422
        assert words in response.json()["error"]


SIZES = {
    "fits": (HOLE, (8, 8), ""),
    "cut": (HOLE, (20, 30), "cut to its centre and resized from 20×30 to 8×8 (height×width)"),
    "shrunk": (HOLE, (16, 16), "resized from 16×16 to 8×8 (height×width)"),
    "small": (Downsample(4), (40, 24), ""),
    "large": (Downsample(4), (80, 48), ""),
}


@pytest.mark.parametrize("kind", SIZES)
def test_the_page_is_told_of_both_sizes_when_a_picture_was_resized(kind: str) -> None:
    measurement, size, words = SIZES[kind]
    app = make_app(make_predictor(measurement))
    assert post(app, png(picture(*size)), "resize=1").json()["resized"] == words


def test_a_picture_of_another_size_is_refused_as_in_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "photo").write_bytes(png(picture(60, 40)))
    with pytest.raises(SystemExit):
        main(["predict", "digits", str(tmp_path / "photo"), "--out", str(tmp_path / "out")])
    said = capsys.readouterr().err
    response = post(make_app(load("digits", "cpu")), png(picture(60, 40)), "name=photo")
    assert response.status_code == 422
    words = response.json()["error"].removeprefix("photo ")
    assert "use --digit" in words
    assert words in said
    with pytest.raises(SystemExit):
        main(["explore", "digits", str(tmp_path / "photo"), "--save", str(tmp_path / "p.html")])
    assert words in capsys.readouterr().err


def test_the_sizes_are_those_of_the_upright_picture() -> None:
    """A photograph that is stored sideways, with a note how to turn it (EXIF)."""
    stream, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(picture(20, 30)).save(stream, "JPEG", exif=exif)
    app = make_app(make_predictor())
    assert "from 30×20 to 8×8" in post(app, stream.getvalue(), "resize=1").json()["resized"]


def test_being_resized_is_told_beside_another_hole_too() -> None:
    own = (HOLE.hole.numpy() * 255).astype(np.uint8)
    answer = send_hole(make_app(make_predictor()), png(own[::-1]), png(picture(16, 16))).json()
    assert "not the hole" in answer["note"]
    assert answer["resized"] == "resized from 16×16 to 8×8 (height×width)"


# ---- another hole ---------------------------------------------------------------------------


def send_hole(app: Any, hole: bytes, content: bytes | None = None) -> Any:
    query = f"clean=1&resize=1&hole={len(hole)}"
    return post(app, (png(picture()) if content is None else content) + hole, query)


def test_another_hole_gives_the_tree_through_it_and_a_note() -> None:
    predictor, pixels = make_predictor(), picture()
    hole = np.zeros((8, 8), np.uint8)
    hole[3:6, 2:] = 255
    app = make_app(predictor)
    answer = send_hole(app, png(hole)).json()
    assert "not the hole that the model was trained for" in answer["note"]
    x = torch.from_numpy(pixels)[None, None].float() / 255
    other = TreePredictor(
        predictor.network, Inpaint(torch.from_numpy(hole == 255)), branching=2, depth=2, channels=1
    )
    tree = other(other.measure(x))
    for level, nodes in enumerate(answer["levels"]):
        for node, image in zip(nodes, tree.images[level][0], strict=True):
            expected = (image.clamp(0, 1) * 255).round().byte().numpy()[0]
            assert np.array_equal(pixels_of(node["image"]), expected)
            assert np.array_equal(pixels_of(node["image"])[hole == 0], pixels[hole == 0])
    again = post(app, png(pixels)).json()  # the model itself keeps its own hole
    assert (pixels_of(again["input"])[:5] == 128).all()
    assert np.array_equal(pixels_of(again["input"])[5:], pixels[5:])


def test_a_blank_hole_is_no_truth_but_what_a_painted_one_covers_is() -> None:
    app, blank = make_app(make_predictor()), picture()
    blank[HOLE.hole.numpy()] = 7
    answer = post(app, png(blank), "clean=1").json()
    assert (answer["truth"], answer["truth_path"]) == (None, None)
    painted = np.zeros((8, 8), np.uint8)
    painted[1:3, 1:3] = 255
    assert HOLE.hole[1:3, 1:3].all()
    answer = send_hole(app, png(painted), png(blank)).json()
    assert np.array_equal(pixels_of(answer["truth"]), blank)


def test_the_model_s_own_hole_needs_no_note() -> None:
    own = (HOLE.hole.numpy() * 255).astype(np.uint8)
    answer = send_hole(make_app(make_predictor()), png(own)).json()
    assert answer["note"] == ""


BAD_HOLES = {
    "size": (png(np.eye(9, dtype=np.uint8) * 255), "the hole is 9×9, this model takes 8×8"),
    "values": (png(np.eye(8, dtype=np.uint8) * 200), "a pixel of value 200"),
    "nothing": (png(np.zeros((8, 8), np.uint8)), "hides 0 of 64 pixels"),
    "all": (png(np.full((8, 8), 255, np.uint8)), "hides 64 of 64 pixels"),
    "words": (b"no hole at all", "the hole .*not an image"),
    "bomb": (bomb(8000, 6000), "the hole has 8000×6000 = 48 megapixels"),
}


@pytest.mark.parametrize("kind", BAD_HOLES)
def test_a_bad_hole_gets_a_readable_reason(kind: str) -> None:
    hole, reason = BAD_HOLES[kind]
    app = make_app(make_predictor())
    response = send_hole(app, hole)
    assert response.status_code == 422
    assert re.search(reason, response.json()["error"])
    assert post(app, png(picture())).status_code == 200


@pytest.mark.parametrize("count", ["-1", "x", "99999999", "1" * 30, "²", "1.5"])
def test_a_wrong_length_of_a_hole_is_refused(count: str) -> None:
    response = post(make_app(make_predictor()), png(picture()), f"clean=1&hole={count}")
    assert response.status_code == 422
    assert "give the number of its bytes" in response.json()["error"]


def test_a_model_without_a_hole_takes_none() -> None:
    response = send_hole(make_app(make_predictor(Denoise(0.2))), png(np.eye(8, dtype=np.uint8)))
    assert response.status_code == 422
    assert "does not fill holes" in response.json()["error"]


def test_measures_come_with_every_tree() -> None:
    app = make_app(make_predictor(), measures={"mean": lambda image: image.mean().item()})
    values = post(app, png(picture())).json()["measures"]["mean"]
    assert len(values) == 4
    assert values == sorted(values)


def test_the_page_refers_to_files_that_are_served_and_holds_its_examples() -> None:
    examples = [{"name": "<b>", "size": [8, 8], "input": None, "truth": None, "truth_path": None,
                 "levels": [[None]], "measures": {}, "rivals": []}]  # fmt: skip
    app = make_app(make_predictor(), examples=examples, title="A & B")
    text = get(app, "/").text
    assert "<title>A &amp; B</title>" in text
    assert "\\u003cb>" in text
    assert "unsafe-inline" not in text
    for file in re.findall(r'(?:src|href)="static/([^"]+)"', text):
        assert file in SERVED
    for file in SERVED:
        response = get(app, f"/static/{file}")
        assert response.status_code == 200
        kind = "text/css" if file.endswith("css") else "text/javascript"
        assert response.headers["content-type"].startswith(kind)
        assert response.headers["x-content-type-options"] == "nosniff"


# ---- what it refuses ------------------------------------------------------------------------


BAD = {
    "empty": (b"", "is empty|not an image"),
    "words": (b"hello, I am not a picture", "not an image"),
    "page": (b"<svg xmlns='x'><script>alert(1)</script></svg>", "not an image"),
    "truncated": (png(picture(64, 64))[:200], "truncated"),
    "header only": (png(picture())[:12], "not an image"),
    "bomb": (bomb(60_000, 60_000), "megapixels|too large"),
    "large": (bomb(8000, 6000), "48 megapixels, the limit is 40"),
    "promise": (bomb(5000, 4000), "truncated"),
    "float": (png(np.full((8, 8), 7.5, np.float32), "TIFF"), "from 7.5 to 7.5; without levels"),
    "nan": (png(np.full((8, 8), np.nan, np.float32), "TIFF"), "64 pixels of NaN or infinity"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_upload_gets_a_readable_reason_and_the_next_one_is_served(kind: str) -> None:
    app = make_app(make_predictor())
    content, reason = BAD[kind]

    async def conversation(client: Any) -> None:
        for way in ("predict", "preview"):
            response = await client.post(f"/api/{way}?name=pic&clean=1", content=content)
            assert response.status_code == 422
            assert re.search(reason, response.json()["error"])
            assert "Traceback" not in response.text
        good = await client.post("/api/predict?clean=1", content=png(picture()))
        assert good.status_code == 200

    talk(app, conversation)


def test_a_file_over_the_limit_is_refused_whether_or_not_it_says_its_size() -> None:
    app = make_app(make_predictor(), limits=Limits(megabytes=0.01))

    async def drip() -> Any:
        for _ in range(100):
            yield b"x" * 1000

    for content in (b"x" * 20_000, drip()):
        response = post(app, content)
        assert response.status_code == 413
        assert "larger than 0.01 MB" in response.json()["error"]


def test_an_upload_that_never_ends_loses_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posterior_trees.serve.body.SECONDS_IDLE", 0.05)

    async def stall() -> Any:
        yield b"x"
        await asyncio.sleep(5)

    app = make_app(make_predictor(), room=1)
    started = time.perf_counter()
    response = post(app, stall())
    assert response.status_code == 408
    assert time.perf_counter() - started < 4
    assert post(app, png(picture())).status_code == 200


@pytest.mark.parametrize("path", ["/static/../server.py", "/static/%2e%2e%2fserver.py",
                                  "/static/page.html", "/etc/passwd", "/docs", "/openapi.json",
                                  "/static//etc/passwd"])  # fmt: skip
def test_no_path_of_a_client_s_is_opened(path: str) -> None:
    response = get(make_app(make_predictor()), path)
    assert response.status_code == 404
    assert "import" not in response.text
    assert list(response.json()) == ["error"]


def test_every_refusal_is_an_error_in_words() -> None:
    app = make_app(make_predictor())
    wrong = [get(app, "/api/nothing"), get(app, "/api/predict"), talk(app, lambda c: c.post("/")),
             talk(app, lambda c: c.delete("/static/main.js"))]  # fmt: skip
    assert [response.status_code for response in wrong] == [404, 405, 405, 405]
    for response in wrong:
        assert list(response.json()) == ["error"]
        assert response.headers["x-content-type-options"] == "nosniff"
    assert "/api/nothing" in wrong[0].json()["error"]
    assert wrong[1].headers["allow"] == "POST"


def test_a_failure_of_our_own_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(*_: Any, **__: Any) -> None:
        raise KeyError("a mistake of ours")

    app = make_app(make_predictor())
    monkeypatch.setattr("posterior_trees.serve.server.ask", break_down)
    response = post(app, png(picture()))
    assert response.status_code == 500
    assert "KeyError" in response.json()["error"]
    monkeypatch.undo()
    assert post(app, png(picture())).status_code == 200


def test_a_name_is_only_a_name() -> None:
    name = "../../etc/passwd<script>" + "x" * 500
    response = talk(make_app(make_predictor()), lambda c: c.post(
        "/api/predict", params={"name": name, "clean": "1"}, content=png(picture())))  # fmt: skip
    assert response.json()["name"] == name[:80]


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "",
                                  "localhost.evil.example:8765", "[::1", "10.0.0.1"])  # fmt: skip
def test_other_names_than_ours_are_refused(host: str) -> None:
    app = make_app(make_predictor())
    for response in (get(app, "/", headers={"host": host}),
                     post(app, png(picture()), headers={"host": host})):  # fmt: skip
        assert response.status_code == 403
        assert "does not answer to the name" in response.json()["error"]


@pytest.mark.parametrize("host", ["127.0.0.1:8765", "localhost:1", "[::1]:8765", "LOCALHOST"])
def test_our_own_names_are_served(host: str) -> None:
    assert get(make_app(make_predictor()), "/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("headers", [{"origin": "http://evil.example"}, {"origin": "null"},
                                     {"origin": "http://["}, {"origin": ""},
                                     {"origin": "http://127.0.0.1:9999"},
                                     {"sec-fetch-site": "cross-site"},
                                     {"sec-fetch-site": "same-site"}])  # fmt: skip
def test_other_sites_pages_are_refused(headers: dict[str, str]) -> None:
    app = make_app(make_predictor())
    response = post(app, png(picture()), headers=headers)
    assert response.status_code == 403
    assert post(app, png(picture()), headers={"origin": HOME}).status_code == 200


def test_a_server_on_all_interfaces_answers_to_addresses_but_not_to_foreign_names() -> None:
    assert allowed_hosts("0.0.0.0") is None
    app = make_app(make_predictor(), host="0.0.0.0")
    assert get(app, "/", headers={"host": "192.168.1.7:8765"}).status_code == 200
    assert get(app, "/", headers={"host": "evil.example"}).status_code == 403
    assert allowed_hosts("lab.example") == {"lab.example"}
    assert socket.gethostname().lower() in allowed_hosts(socket.gethostname())


# ---- load -----------------------------------------------------------------------------------


def test_fifty_uploads_at_once_neither_crash_nor_starve_the_page() -> None:
    predictor = make_predictor()
    app = make_app(predictor, room=8)

    async def conversation(client: Any) -> None:
        uploads = [client.post("/api/predict?clean=1", content=png(picture())) for _ in range(50)]
        waiting = asyncio.gather(*uploads)
        started = time.perf_counter()
        page = await client.get("/")
        seconds = time.perf_counter() - started
        assert page.status_code == 200
        assert seconds < 2
        codes = [response.status_code for response in await waiting]
        assert set(codes) == {200, 503}
        assert codes.count(200) >= 8
        full = next(r for r in await asyncio.gather(waiting) for r in r if r.status_code == 503)
        assert "waiting, which is the limit" in full.json()["error"]
        assert full.headers["retry-after"]
        again = await client.post("/api/predict?clean=1", content=png(picture()))
        assert again.status_code == 200

    talk(app, conversation)
    assert len(set(predictor.network.threads)) == 1  # one after the other


def test_a_place_in_the_queue_is_given_back_after_an_error() -> None:
    worker = Worker(room=1)

    async def run() -> None:
        with pytest.raises(ZeroDivisionError):
            async with worker.place():
                await worker.run(lambda: 1 // 0)
        async with worker.place():
            with pytest.raises(RefusedError, match="1 pictures are waiting"):
                async with worker.place():
                    pass
        assert worker.taken == 0

    asyncio.run(run())
    with pytest.raises(ValueError, match="room for 0"):
        Worker(room=0)


# ---- the command ----------------------------------------------------------------------------


@pytest.fixture
def model(tmp_path: Path, recipe: Callable[..., Any]) -> Path:
    from posterior_trees.models.build import build_predictor

    torch.manual_seed(0)
    made = recipe()
    save_model(tmp_path / "m.safetensors", build_predictor(made), made)
    return tmp_path / "m.safetensors"


def content_of(file: Path) -> dict:
    found = re.search(r'id="trees">(.*?)</script>', file.read_text("utf-8"), re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_a_page_is_saved_with_pictures_rivals_and_measures(model: Path, tmp_path: Path) -> None:
    for i in range(2):
        (tmp_path / f"{i}.png").write_bytes(png(picture(8 + i, 8)))
    leaves = torch.rand(2, 2, 1, 8, 8)
    grow(leaves, torch.zeros(2, 2).log_softmax(1), 2).save(tmp_path / "rival.safetensors")
    options = ["--compare", f"K-means={tmp_path / 'rival.safetensors'}",
               "--measure", "posterior_trees.explore.measures:count_bright",
               "--measure", "share=0.5"]  # fmt: skip
    pictures = [str(tmp_path / "0.png"), str(tmp_path / "1.png")]
    main(
        ["explore", str(model), *pictures, "--resize", "--save", str(tmp_path / "p.html"), *options]
    )
    content = content_of(tmp_path / "p.html")
    assert [example["name"] for example in content["examples"]] == ["0.png", "1.png"]
    assert [e["rivals"][0]["name"] for e in content["examples"]] == ["K-means"] * 2
    for title in ("count bright", "share=0.5"):
        assert all(len(e["measures"][title]) == 2 for e in content["examples"])
    assert "server" not in content


def test_a_camera_s_field_is_explored_with_levels_as_it_is_predicted(
    model: Path, tmp_path: Path
) -> None:
    stored = np.linspace(100, 2700, 64).reshape(8, 8).round().astype(np.uint16)
    (tmp_path / "raw.tif").write_bytes(png(stored, "TIFF"))
    words = [str(model), str(tmp_path / "raw.tif"), "--levels", "150", "2600", "--gamma", "0.5"]
    main(["explore", *words, "--measured", "--save", str(tmp_path / "p.html")])
    main(["predict", *words, "--out", str(tmp_path / "o")])
    (example,) = content_of(tmp_path / "p.html")["examples"]
    (other,) = content_of(tmp_path / "o" / "index.html")["examples"]
    assert example["levels"] == other["levels"]
    assert example["input"] == other["input"]


def refuse(capsys: pytest.CaptureFixture, *arguments: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main(["explore", *arguments])
    assert stop.value.code == 1
    return capsys.readouterr().err


def test_a_picture_that_is_resized_is_named_with_both_sizes(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, (height, width) in {"fits": (8, 8), "wide": (20, 30), "large": (16, 16)}.items():
        (tmp_path / name).write_bytes(png(picture(height, width)))
    pictures = [str(tmp_path / name) for name in ("fits", "wide", "large")]
    words = [str(model), *pictures, "--save", str(tmp_path / "p.html")]
    assert "20×30 (height×width), the model takes 8×8" in refuse(capsys, *words)
    main(["explore", *words, "--resize"])
    assert capsys.readouterr().err.splitlines() == [
        f"ptrees explore: {pictures[1]}: {SIZES['cut'][2]}",
        f"ptrees explore: {pictures[2]}: {SIZES['shrunk'][2]}",
    ]
    assert [example["resized"] for example in content_of(tmp_path / "p.html")["examples"]] == [
        SIZES[kind][2] for kind in ("fits", "cut", "shrunk")
    ]


def test_mistakes_on_the_command_line_are_explained(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    name, html = str(model), str(tmp_path / "p.html")
    (tmp_path / "a.png").write_bytes(png(picture()))
    (tmp_path / "text.png").write_text("no")
    Tree([torch.rand(3, 1, 1, 8, 8)], [torch.zeros(3, 1)], ()).save(tmp_path / "three")
    a = str(tmp_path / "a.png")
    assert "nothing to save" in refuse(capsys, name, "--save", html)
    assert "Check the name" in refuse(capsys, name, str(tmp_path / "no.png"), "--save", html)
    assert "not an image" in refuse(capsys, name, str(tmp_path / "text.png"), "--save", html)
    assert "write NAME=FILE" in refuse(capsys, name, a, "--compare", "x", "--save", html)
    three = f"x={tmp_path / 'three'}"
    assert "3 trees for 1 picture" in refuse(capsys, name, a, "--compare", three, "--save", html)
    assert "MODULE:FUNCTION" in refuse(capsys, name, a, "--measure", "nowhere:f", "--save", html)
    assert "ports are 0 to 65535" in refuse(capsys, name, "--port", "70000", "--no-browser")


def test_a_taken_port_is_named_with_the_way_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=rf"127.0.0.1:{port} .* choose another --port"):
            listen("127.0.0.1", port)


@pytest.mark.parametrize("missing", ["fastapi", "uvicorn"])
def test_what_the_server_lacks_is_named_with_the_extra(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(RuntimeError, match=rf"{missing}.*\[explore\]"):
        serve(make_app(make_predictor()), "127.0.0.1", 0)


@pytest.mark.parametrize("form", ["ICO", "TIFF"])
def test_formats_that_decode_too_early_and_broken_pages_are_refused(form: str) -> None:
    """An icon decodes before it tells its size; a TIFF's second directory may be broken."""
    stream = io.BytesIO()
    Image.new("L", (28, 28)).save(stream, form)
    content = stream.getvalue()
    if form == "TIFF":  # point to a second directory that holds no width
        start = int.from_bytes(content[4:8], "little")
        entries = int.from_bytes(content[start : start + 2], "little")
        link = start + 2 + 12 * entries
        content = content[:link] + len(content).to_bytes(4, "little") + content[link + 4 :]
        content += b"\1\0" + b"\0" * 12 + b"\0" * 4
    response = post(make_app(make_predictor()), content)
    assert response.status_code == 422
    assert "error" in response.json()


def test_a_file_that_says_it_is_too_large_is_refused_unread() -> None:
    app, sent = make_app(make_predictor(), limits=Limits(megabytes=0.01)), []

    async def drip() -> Any:
        for _ in range(5):
            sent.append(1000)
            yield b"x" * 1000

    response = post(app, drip(), headers={"content-length": "200000"})
    assert response.status_code == 413
    assert sent == []
