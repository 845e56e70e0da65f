"""Somebody's pictures: what they say is looked at with limits on time and memory."""

import contextlib
import io
import resource
import time

import numpy as np
import pytest
from bombs import hidden_text, large, many_frames, many_pages, many_scans, shared_tags
from PIL import Image

from posterior_trees.errors import DataError
from posterior_trees.imaging import guarded
from posterior_trees.imaging.decode import decode_raw, read_header
from posterior_trees.imaging.guarded import Worker, decode_picture, picture_header, picture_size
from posterior_trees.imaging.tiff import check_pages


@pytest.fixture
def worker(monkeypatch) -> Worker:
    """A decoder with narrow limits, in the place of the one there is."""
    narrow = Worker(seconds=3, gigabytes=1)
    monkeypatch.setattr(guarded, "WORKER", narrow)
    yield narrow
    narrow.end()


def stored(form: str, mode: str = "RGB", **options) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 4), np.uint8)
    image = Image.fromarray(pixels).convert(mode)
    if mode == "I;16":
        image = Image.fromarray(pixels[..., 0].astype(np.uint16) * 257)
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("content", "is_here"),
    [
        (stored("PNG"), True),
        (stored("PNG", "I;16"), True),
        (stored("JPEG", exif=b"Exif\0\0II*\0\x08\0\0\0\0\0\0\0\0\0"), True),
        (stored("JPEG", progressive=True), True),
        (stored("PPM"), True),
        (stored("BMP"), False),
        (stored("GIF", "P"), False),
        (stored("WEBP", "RGBA", lossless=True), False),
        (stored("TIFF", "F"), False),
        (stored("TIFF", "I;16"), False),
        (stored("TIFF", compression="tiff_lzw"), False),
    ],
)
def test_the_guarded_decoder_gives_what_the_plain_one_gives(worker, content, is_here) -> None:
    """And what is harmless needs no process."""
    for channels, size, is_cut in ((1, (), True), (3, (10, 12), True), (1, (7, 9), False)):
        plain = decode_raw(io.BytesIO(content), "a", channels, size, is_cut)
        found = decode_picture(content, "a", channels, size, is_cut)
        assert found.dtype == plain.dtype
        assert np.array_equal(found, plain)
    assert picture_header(content, "a") == read_header(io.BytesIO(content), "a")
    assert picture_size(content, "a") == (20, 30)
    assert (worker.process is None) == is_here


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.parametrize(
    "make",
    [
        lambda: many_pages(190_000),
        lambda: many_frames(800_000),
        lambda: shared_tags(200, 19),
        lambda: many_scans(3000, 1500),
        lambda: hidden_text(b"zTXt", 500),
        lambda: hidden_text(b"eXIf", 15),
        lambda: large(100_000, 100_000),
        lambda: large(17_000, 10_000),
    ],
    ids=["pages", "frames", "tags", "scans", "text", "exif", "10 Gpixel", "170 Mpixel"],
)
def test_a_bomb_ends_within_its_limits(worker, make) -> None:
    """And the next picture is decoded."""
    content = make()
    before, start = peak(), time.monotonic()
    with contextlib.suppress(DataError):
        decode_picture(content, "a.tif", 1)
    assert time.monotonic() - start < 6
    assert peak() - before < 1_500_000  # kB: a picture of 170 megapixels, and its copy in float
    after = stored("TIFF")
    plain = decode_raw(io.BytesIO(after), "a", 1)
    assert np.array_equal(decode_picture(after, "b", 1), plain)


@pytest.mark.parametrize("make", [lambda: many_pages(190_000), lambda: many_frames(800_000)])
def test_frames_are_not_counted(make) -> None:
    """Also where there is no process: in a training set."""
    content, start = make(), time.monotonic()
    with pytest.raises(DataError, match="holds more than one image"):
        decode_raw(io.BytesIO(content), "a", 1)
    assert time.monotonic() - start < 1


def test_a_decoder_that_is_late_is_ended_and_says_its_limit(worker) -> None:
    worker.seconds = 0.2  # a quick computer decodes them in 2 s
    with pytest.raises(DataError, match=r"scans takes more than 0\.2 s to decode, the limit"):
        decode_picture(many_scans(3000, 1500), "scans", 1)
    assert worker.process is None


def test_a_stop_in_between_leaves_no_answer_for_the_next(worker, monkeypatch) -> None:
    def stop(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(guarded, "receive", stop)
        worker.process = None
        with pytest.raises(KeyboardInterrupt):
            decode_picture(stored("TIFF"), "a", 1)
    assert decode_picture(stored("TIFF"), "a", 1).shape == (1, 20, 30)


def test_stacks_have_a_largest_number_of_pages(tmp_path) -> None:
    file, start = tmp_path / "a.tif", time.monotonic()
    file.write_bytes(many_pages(190_000))
    with pytest.raises(DataError, match="more than 100000 pages"):
        check_pages(file)
    content = bytearray(many_pages(5))
    content[-4:] = (8).to_bytes(4, "little")
    file.write_bytes(content)
    with pytest.raises(DataError, match="or goes in a circle"):
        check_pages(file)
    assert time.monotonic() - start < 4
    file.write_bytes(many_pages(7))
    check_pages(file)
