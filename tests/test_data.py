"""Files, splits, sets, patches, augmentation: what goes in comes out, and bad files are named."""

import gzip
import io
import math
import re
import resource
import struct
import tarfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from posterior_trees import data
from posterior_trees.data import (
    ImageSet,
    StreamedImageSet,
    augment,
    files_of,
    find_folder,
    find_groups,
    image_of,
    load_split,
    own_names,
    read_idx,
    store_edges,
)
from posterior_trees.data.archive import open_archive
from posterior_trees.data.augment import transform
from posterior_trees.data.splits import SPLITS, split_names, well
from posterior_trees.data.stream import cover
from posterior_trees.data.values import move
from posterior_trees.errors import DataError
from posterior_trees.imaging.decode import decode, read_header
from posterior_trees.recipe.sections import DataSpec

ROOT = Path(__file__).resolve().parents[1]


def spec(**changes) -> DataSpec:
    shares = {"split_order": "sorted", "validation": 0.2, "test": 0.2}
    return DataSpec(**({"name": "photos", **shares} | changes))


PAIRS = {"kind": "pairs", "inputs": "y", "targets": "x", "channels": 1}


def noise(seed: int, *shape: int, dtype: type = np.uint8) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


def save(file: Path, pixels: np.ndarray, **options) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(file, **options)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A data folder with ten 12×16 colour images in `photos/`."""
    for i in range(10):
        save(tmp_path / "photos" / f"{i:02d}.png", noise(i, 12, 16, 3))
    return tmp_path


@pytest.fixture
def cells(tmp_path: Path) -> Path:
    """A data folder with ten pairs of grey fields, two per well, in `cells/y` and `cells/x`."""
    for i in range(10):
        name = f"{'ABCDE'[i // 2]}01_s{i % 2 + 1}.png"
        pixels = noise(i, 20, 23)
        save(tmp_path / "cells" / "x" / name, pixels)
        save(tmp_path / "cells" / "y" / name, 255 - pixels)
    return tmp_path


def pack(folder: Path, name: str, prefix: str = "./") -> Path:
    """Move `folder/name/` into `folder/name.tar`."""
    source = folder / name
    with tarfile.open(folder / f"{name}.tar", "w") as tar:
        for file in sorted(source.rglob("*"), reverse=True):
            if file.is_file():
                tar.add(file, arcname=prefix + file.relative_to(source).as_posix())
                file.unlink()
    for inner in sorted(source.rglob("*"), reverse=True):
        inner.rmdir()
    source.rmdir()
    return folder / f"{name}.tar"


def write_idx(file: Path, array: np.ndarray, pack=gzip.compress) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    file.write_bytes(pack(header + array.tobytes()))


# --- IDX -----------------------------------------------------------------------------------------


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    write_idx(tmp_path / "mnist" / "train-images-idx3-ubyte.gz", noise(0, 20, 5, 6))
    write_idx(tmp_path / "mnist" / "t10k-images-idx3-ubyte", noise(1, 7, 5, 6), bytes)
    return tmp_path


def test_idx_files_give_back_their_digits_and_split_by_file(digits: Path) -> None:
    idx = spec(name="mnist", kind="idx", channels=1, split="files", validation=0.2, test=0.0)
    parts = {split: load_split(idx, digits, split) for split in ("train", "validation", "test")}
    assert [len(part) for part in parts.values()] == [16, 4, 7]
    together = torch.cat([parts["train"].x, parts["validation"].x])
    assert np.array_equal(together[:, 0].numpy(), noise(0, 20, 5, 6))
    assert np.array_equal(parts["test"].x[:, 0].numpy(), noise(1, 7, 5, 6))
    assert parts["validation"].names[0] == "train/00016"


def test_without_a_validation_share_all_digits_train_and_none_validate(digits: Path) -> None:
    idx = spec(name="mnist", kind="idx", channels=1, split="files", validation=0.0)
    assert len(load_split(idx, digits, "train")) == 20
    with pytest.raises(DataError, match=r"validation split is empty.*data.validation above 0"):
        load_split(idx, digits, "validation")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda raw: raw[:-30], "truncated or damaged"),
        (lambda raw: gzip.compress(gzip.decompress(raw)[:-1]), "should hold 600 values"),
        (lambda raw: gzip.compress(b"\1" + gzip.decompress(raw)[1:]), "not an IDX file"),
        (lambda raw: gzip.compress(gzip.decompress(raw)[:9]), "inside its header"),
        (lambda raw: b"", "not an IDX file"),
        (lambda raw: gzip.compress(b"\0\0\x08\1\0\0\0\2ab"), "1 dimensions where images have 3"),
    ],
)
def test_a_broken_idx_file_is_named(digits: Path, spoil, message: str) -> None:
    file = digits / "mnist" / "train-images-idx3-ubyte.gz"
    file.write_bytes(spoil(file.read_bytes()))
    with pytest.raises(DataError, match=message) as error:
        load_split(spec(name="mnist", kind="idx", split="files"), digits, "train")
    assert str(file) in str(error.value)


def test_idx_images_take_the_size_and_channels_asked_for(digits: Path) -> None:
    idx = spec(name="mnist", kind="idx", channels=3, split="files", size=(10, 10))
    images = load_split(idx, digits, "test")
    assert images.shape == (3, 10, 10)
    assert torch.equal(images.x[:, 0], images.x[:, 2])


# --- folders, tar files, decoding -----------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "./", "photos/"])
def test_a_tar_file_is_the_same_set_as_its_folder(photos: Path, prefix: str) -> None:
    (photos / "photos" / "notes.txt").write_text("not an image")
    (photos / "photos" / "._00.png").write_bytes(b"left behind by another system")
    folder = load_split(spec(), photos, "train")
    pack(photos, "photos", prefix)
    tar = load_split(spec(), photos, "train")
    assert tar.names == folder.names == [f"{i:02d}.png" for i in range(6)]
    assert torch.equal(tar.x, folder.x)
    assert np.array_equal(tar.x[3].permute(1, 2, 0).numpy(), noise(3, 12, 16, 3))


def read(pixels: Image.Image, channels: int, form: str = "png", size=(), **options) -> np.ndarray:
    buffer = io.BytesIO()
    pixels.save(buffer, form, **options)
    return decode(buffer, f"a.{form}", channels, size)


@pytest.mark.parametrize("form", ["png", "tiff", "bmp", "webp"])
def test_lossless_formats_give_back_every_pixel(form: str) -> None:
    pixels = noise(0, 9, 11, 3)
    options = {"lossless": True} if form == "webp" else {}
    decoded = read(Image.fromarray(pixels), 3, form, **options)
    assert np.array_equal(decoded, pixels.transpose(2, 0, 1))


def test_jpeg_is_read_to_its_own_precision() -> None:
    smooth = np.linspace(0, 255, 64 * 64).reshape(64, 64).astype(np.uint8)
    assert (
        np.abs(read(Image.fromarray(smooth), 1, "jpeg", quality=95)[0] - smooth.astype(int)).max()
        <= 6
    )


@pytest.mark.parametrize("form", ["png", "tiff"])
def test_sixteen_bits_stay_sixteen_bits(form: str) -> None:
    pixels = noise(0, 9, 11, dtype=np.uint16)
    decoded = read(Image.fromarray(pixels), 1, form)
    assert decoded.dtype == np.uint16
    assert np.array_equal(decoded[0], pixels)


def test_palette_transparency_bilevel_and_orientation_are_resolved() -> None:
    pixels = noise(0, 6, 8, 3) // 86 * 85  # at most 27 colours
    palette = Image.fromarray(pixels).convert("P", palette=Image.Palette.ADAPTIVE, colors=64)
    assert np.array_equal(read(palette, 3), np.asarray(palette.convert("RGB")).transpose(2, 0, 1))

    clear = Image.new("RGBA", (4, 4), (10, 20, 30, 0))
    assert (read(clear, 3) == 255).all()
    assert (read(Image.new("LA", (4, 4), (10, 255)), 1) == 10).all()
    assert (read(Image.new("1", (4, 4), 1), 1) == 255).all()

    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held sideways
    turned = read(Image.fromarray(pixels), 3, exif=exif)
    assert np.array_equal(turned, np.rot90(pixels, -1).transpose(2, 0, 1))
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "png", exif=exif)
    assert read_header(buffer, "a")[:2] == turned.shape[1:] == (8, 6)


def test_colour_and_grey_turn_into_one_another() -> None:
    grey = noise(0, 5, 5)
    assert np.array_equal(read(Image.fromarray(grey), 3), np.stack([grey] * 3))
    same = np.stack([grey] * 3, axis=2)
    assert np.array_equal(read(Image.fromarray(same), 1)[0], grey)


def test_what_has_no_known_range_or_one_image_is_refused() -> None:
    with pytest.raises(DataError, match="floating-point"):
        read(Image.fromarray(np.zeros((4, 4), np.float32)), 1, "tiff")
    with pytest.raises(DataError, match="1 pixel of NaN"):
        read(Image.fromarray(np.diag([np.nan, 1, 1, 1]).astype(np.float32)), 1, "tiff")
    with pytest.raises(DataError, match="32-bit pixels, up to 70000"):
        read(Image.fromarray(np.full((4, 4), 70000, np.int32)), 1, "tiff")
    page = Image.new("L", (4, 4))
    with pytest.raises(DataError, match="holds more than one image"):
        read(page, 1, "tiff", save_all=True, append_images=[page, page])


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_resizing_keeps_the_centre_and_the_mean(dtype: type) -> None:
    top = np.iinfo(dtype).max
    wide = np.zeros((40, 120), dtype)
    wide[:, 40:80] = noise(0, 40, 40, dtype=dtype)
    small = read(Image.fromarray(wide), 1, size=(10, 10))[0]
    assert small.dtype == dtype
    # 4×4 pixels become one: without antialiasing the spread would stay that of single pixels.
    assert abs(small.mean() / top - wide[:, 40:80].mean() / top) < 0.01
    assert small.std() < 0.5 * wide[:, 40:80].std()
    step = np.repeat(np.array([[0, top]], dtype), 8, axis=1).repeat(16, axis=0)
    steep = read(Image.fromarray(step), 1, size=(40, 40))[0]  # bicubic overshoots
    assert steep[:, :18].max() < top / 4 < 3 * (top / 4) < steep[:, 22:].min()


# --- bad files are named --------------------------------------------------------------------------


def test_a_missing_set_says_what_to_put_where(tmp_path: Path, monkeypatch) -> None:
    with pytest.raises(DataError) as error:
        load_split(spec(name="faces256"), tmp_path, "train")
    for part in (f"{tmp_path}/faces256/", f"{tmp_path}/faces256.tar", "CelebA-HQ", "`ptrees data"):
        assert part in str(error.value)
    with pytest.raises(DataError, match="actin/ and dna/ with images of the same names"):
        load_split(spec(kind="pairs", inputs="actin", targets="dna"), tmp_path, "train")
    with pytest.raises(DataError, match="--download mnist"):
        load_split(spec(name="mnist", kind="idx", split="files"), tmp_path, "train")
    with pytest.raises(DataError, match=r"does not exist.*PTREES_DATA"):
        load_split(spec(), tmp_path / "elsewhere", "train")
    monkeypatch.delenv("PTREES_DATA", raising=False)
    with pytest.raises(DataError, match="no data folder is given"):
        load_split(spec(), None, "train")


def test_the_variable_names_the_folder(photos: Path, monkeypatch) -> None:
    monkeypatch.setenv("PTREES_DATA", str(photos))
    assert len(load_split(spec(), None, "train")) == 6
    assert find_folder(None, default="elsewhere") == photos
    monkeypatch.setenv("PTREES_DATA", "~/pictures")
    assert find_folder(None) == Path.home() / "pictures"
    monkeypatch.delenv("PTREES_DATA")
    assert find_folder(None, default="data") == Path("data")


def test_windows_belong_to_their_image_and_fields_to_their_well() -> None:
    names = ["a/B02_s1.png@0,0", "a/B02_s1.png@0,128", "a/B02_s2.png@0,0", "a/C03_s1.png@0,0@4,8"]
    assert [image_of(name) for name in names[2:]] == ["a/B02_s2.png", "a/C03_s1.png"]
    assert find_groups(names, "name").tolist() == [0, 0, 1, 2]
    assert find_groups(names, "well").tolist() == [0, 0, 0, 1]
    assert find_groups(names[1:], "name") is None
    assert image_of("me@home.png") == "me@home.png"
    assert files_of(names) == ["a/B02_s1.png", "a/B02_s2.png", "a/C03_s1.png"]


def test_an_empty_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    with pytest.raises(DataError, match=r"no images in .*photos"):
        load_split(spec(), tmp_path, "train")


@pytest.mark.parametrize("keep", [60, 0])
def test_a_truncated_image_is_named(photos: Path, keep: int) -> None:
    file = photos / "photos" / "02.png"
    file.write_bytes(file.read_bytes()[:keep])
    message = r"02\.png is truncated or not an image|no images.*: 02\.png"
    with pytest.raises(DataError, match=message):
        load_split(spec(), photos, "train")


def test_a_truncated_or_compressed_tar_is_named(photos: Path) -> None:
    tar = pack(photos, "photos")
    whole = tar.read_bytes()
    with tarfile.open(tar) as opened:
        between = opened.getmembers()[5].offset
    cuts = [whole[:1000], whole[:600], whole[:between]]
    for spoiled in (*cuts, gzip.compress(whole), b"no tar at all" * 100):
        tar.write_bytes(spoiled)
        with pytest.raises(DataError, match=r"photos\.tar is truncated"):
            load_split(spec(), photos, "train")


def test_sizes_that_differ_ask_for_a_size_or_a_patch(photos: Path) -> None:
    save(photos / "photos" / "04.png", noise(0, 30, 17, 3))
    with pytest.raises(
        DataError, match=r"00\.png is 12×16, 04\.png is 30×17.*data\.size.*data\.patch"
    ):
        load_split(spec(), photos, "train")
    assert load_split(spec(size=(8, 8)), photos, "train").x.shape == (6, 3, 8, 8)
    with pytest.raises(DataError, match=r"00\.png is 12×16, smaller than data\.patch = 13"):
        load_split(spec(patch=13), photos, "train")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": (8,)}, "data.size"),
        ({"split": "files"}, "data.split is 'files'"),
        ({"validation": 0.5, "test": 0.5}, "leave something"),
        ({"augment": ("flop",)}, "did you mean 'flip'"),
        ({"augment": ("crop",)}, "set data.patch"),
        ({"kind": "pairs"}, "data.inputs and data.targets"),
        ({**PAIRS, "shift": (1.0,)}, "data.shift is (1.0,); it is (rows, columns)"),
        ({"shift": (0.5, 0.0)}, "only pairs can lie apart"),
        ({"kind": "idx", "split": "name"}, "split by 'files'"),
    ],
)
def test_a_wrong_data_section_is_explained(photos: Path, changes: dict, message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        load_split(spec(**changes), photos, "train")
    with pytest.raises(DataError, match="unknown split 'valid'"):
        load_split(spec(), photos, "valid")


# --- splits ---------------------------------------------------------------------------------------


def test_splits_are_disjoint_complete_and_in_order_of_names() -> None:
    names = [f"{i:04d}.webp" for i in range(5000)]
    shares = {"by": "name", "order": "sorted", "validation": 0.05, "test": 0.1}
    train, validation, test = (
        split_names(names[::-1], split, **shares) for split in ("train", "validation", "test")
    )
    assert train + validation + test == names
    assert (len(train), len(validation), len(test)) == (4250, 250, 500)


def test_no_well_is_on_two_sides() -> None:
    names = [
        f"{row}{column:02d}_s{s}.png" for row in "ABCDE" for column in range(22) for s in (1, 2)
    ]
    names = [name for name in names if name[:3] not in ("E20", "E21")]  # 108 wells
    shares = {"by": "well", "order": "sorted", "validation": 0.05, "test": 0.1}
    parts = [split_names(names, split, **shares) for split in ("train", "validation", "test")]
    wells = [{name[:3] for name in part} for part in parts]
    assert [len(part) for part in wells] == [92, 5, 11]
    assert [name for part in parts for name in part] == sorted(names)


def test_a_small_set_still_has_every_split_that_is_asked_for() -> None:
    shares = {"by": "name", "order": "sorted", "validation": 0.01, "test": 0.01}
    parts = [split_names("abc", split, **shares) for split in ("train", "validation", "test")]
    assert parts == [["a"], ["b"], ["c"]]
    with pytest.raises(DataError, match="train split is empty: there are 2 images"):
        split_names("ab", "train", **shares)


@pytest.mark.parametrize("by", ["name", "well"])
def test_splits_by_hash_move_nothing_when_files_come_or_go(by: str) -> None:
    """And keep wells whole, whatever order the names come in."""
    names = [
        f"p{i % 3}/{'ABCDEFGH'[i // 24]}{i % 24:02d}_{s}.png" for i in range(192) for s in "12"
    ]
    shares = {"by": by, "order": "hash", "validation": 0.1, "test": 0.2}

    def sides(names: list[str]) -> dict[str, str]:
        return {name: split for split in SPLITS for name in split_names(names, split, **shares)}

    every = sides(names)
    assert sorted(every) == sorted(names), "a name is on two sides, or on none"
    assert sides(names[::-1]) == every
    for left_out in (names[:1], names[5:9], names[::2], names[200:]):
        some = sides([name for name in names if name not in left_out])
        assert some == {name: every[name] for name in some}
    if by == "well":
        wells = {(well(name), side) for name, side in every.items()}
        assert len(wells) == len({well(name) for name in names})


def test_splits_by_hash_are_exchangeable_shares_of_the_set() -> None:
    """Sizes are binomial (here within 4 standard deviations), and the order of names, which sorted
    splits follow, says nothing: the mean place of a split is that of a random draw."""
    n, fractions = 20_000, {"train": 0.7, "validation": 0.1, "test": 0.2}
    names = [f"{i:05d}" for i in range(n)]
    for split, fraction in fractions.items():
        part = split_names(names, split, by="name", order="hash", validation=0.1, test=0.2)
        assert abs(len(part) - n * fraction) < 4 * math.sqrt(n * fraction * (1 - fraction))
        assert abs(np.mean([int(name) for name in part]) / n - 0.5) < 4 * math.sqrt(
            1 / 12 / len(part)
        )


def test_a_small_set_by_hash_has_every_split_and_grows_towards_training() -> None:
    """No file that comes makes an image that was trained on one that is judged."""
    shares = {"by": "name", "order": "hash", "validation": 0.05, "test": 0.1}
    rank, before = {"train": 0, "validation": 1, "test": 2}, {}
    for n in range(3, 60):
        names = [f"{i}.png" for i in range(n)]
        after = {x: split for split in SPLITS for x in split_names(names, split, **shares)}
        assert set(after.values()) == set(SPLITS), "a split is empty"
        assert all(rank[after[name]] <= rank[side] for name, side in before.items())
        before = after
    with pytest.raises(DataError, match="train split is empty"):
        split_names("ab", "train", **shares)


def test_digits_can_be_drawn_by_hash(digits: Path) -> None:
    idx = spec(name="mnist", kind="idx", channels=1, split="files", split_order="hash")
    train, validation = (load_split(idx, digits, split) for split in ("train", "validation"))
    both = sorted(train.names + validation.names)
    assert both == [f"train/{i:05d}" for i in range(20)]
    assert validation.names != both[-len(validation) :]
    everything = load_split(replace(idx, validation=0.0), digits, "train")
    places = [int(name[-5:]) for name in validation.names]
    assert torch.equal(validation.x, everything.x[places])


# --- extra sets -----------------------------------------------------------------------------------


@pytest.fixture
def more(photos: Path) -> Path:
    """The ten photos, and a tar of four more, twice as large."""
    for i in range(4):
        save(photos / "more" / f"{i:02d}.png", noise(100 + i, 24, 32, 3))
    pack(photos, "more")
    return photos


@pytest.mark.parametrize("kind", ["images", "edges"])
@pytest.mark.parametrize("limit", [None, 0])
def test_extra_images_train_and_nothing_else(more: Path, kind: str, limit: int | None) -> None:
    """They come behind the set's own, cut and resized alike; its splits stay as they were."""
    plain = spec(kind=kind, size=(12, 12))
    extended = replace(plain, extra=("more",))
    for split in ("validation", "test"):
        assert load_split(extended, more, split).names == load_split(plain, more, split).names
    own, both = (load_split(s, more, "train", limit) for s in (plain, extended))
    assert own_names(both.names) == own.names == both.names[:6]
    assert both.names[6:] == [f"extra:more/{i:02d}.png" for i in range(4)]
    by_themselves = spec(name="more", kind=kind, size=(12, 12), validation=0.0, test=0.0)
    expected = [own.batch(range(6)), load_split(by_themselves, more, "train").batch(range(4))]
    for found, parts in zip(both.batch(range(10)), zip(*expected, strict=True), strict=True):
        assert (found is None) == (kind == "images" and parts[0] is None)
        assert found is None or torch.equal(found, torch.cat(parts))


def test_extra_photos_have_stored_edge_maps(more: Path) -> None:
    store_edges(more, "more")
    extended = spec(kind="edges", channels=3, size=(), patch=8, extra=("more",))
    with tarfile.open(more / "more_edges1.tar") as tar:
        shown = tar.extractfile(tar.getmember("02.png.png")).read()
    marked = np.asarray(Image.open(io.BytesIO(shown))).copy()
    marked[0, :5] = ~marked[0, :5]  # nobody would draw this
    save(more / "more_edges1" / "02.png.png", marked)
    images = load_split(extended, more, "train")
    number = next(i for i, name in enumerate(images.names) if name.startswith("extra:more/02.png"))
    assert torch.equal(images.y[number, 0], torch.tensor(marked[:12, :16] * np.uint8(255)))


def test_splits_of_a_set_do_not_need_its_extras(photos: Path) -> None:
    extended = spec(extra=("more",))
    assert len(load_split(extended, photos, "test")) == 2
    trained = data.fingerprint(load_split(spec(), photos, "train").names)
    assert data.describe_other_images(extended, photos, trained) == ""
    with pytest.raises(DataError, match=r"data.extra: the set 'more' is not in .*more.tar"):
        load_split(extended, photos, "train")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": (24, 24)}, None),
        ({"size": (32, 32)}, r"more has images of 24×32, which .* \[32, 32\] would enlarge"),
        ({"size": (12, 12), "extra": ("photos",)}, "not 'photos', whose test images must not"),
        ({"size": (12, 12), "extra": ("more", "more")}, "each set once"),
        ({"kind": "idx", "split": "files"}, "data.kind is 'idx': only sets of single images"),
        ({"kind": "pairs", "inputs": "y", "targets": "x"}, "data.kind is 'pairs'"),
        ({}, r"images differ in size .* Set data.size = \[48, 64\]"),
        ({"size": (12, 12), "channels": 1}, "images of more are in colour, and data.channels is 1"),
    ],
)
def test_extra_sets_that_do_not_suit_are_refused_with_the_fix(more: Path, changes, message) -> None:
    for i in range(10):
        save(more / "photos" / f"{i:02d}.png", noise(i, 48, 64, 3))
    extended = spec(**({"extra": ("more",)} | changes))
    if message is None:
        assert len(load_split(extended, more, "train")) == 10
        return
    with pytest.raises(DataError, match=message):
        load_split(extended, more, "train")


def test_grey_extras_do_not_teach_colours(photos: Path) -> None:
    save(photos / "grey" / "0.png", noise(0, 12, 16))
    with pytest.raises(DataError, match=r"of grey are grey, and data\.channels is 3"):
        load_split(spec(extra=("grey",)), photos, "train")


# --- pairs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_tar", [False, True])
def test_pairs_stay_together(cells: Path, is_tar: bool) -> None:
    if is_tar:
        pack(cells, "cells")
    images = load_split(spec(name="cells", split="well", **PAIRS), cells, "train")
    x, y = images.batch(range(len(images)))
    assert images.names == [f"{well}01_s{s}.png" for well in "ABC" for s in (1, 2)]
    assert y is not None
    assert torch.allclose(x + y, torch.ones_like(x))


@pytest.mark.parametrize("limit", [0, 10**9])
def test_whole_shifts_move_y_alone_and_repeat_the_border(cells: Path, limit: int) -> None:
    as_stored = load_split(spec(name="cells", **PAIRS), cells, "train").batch([0, 3])
    shifted = spec(name="cells", **PAIRS, shift=(2.0, -3.0))
    x, y = load_split(shifted, cells, "train", resident_limit_bytes=limit).batch([0, 3])
    assert y is not None
    assert as_stored[1] is not None
    assert torch.equal(x, as_stored[0])
    assert torch.equal(y[..., 2:, :-3], as_stored[1][..., :-2, 3:])
    assert torch.equal(y[..., :2, :-3], as_stored[1][..., :1, 3:].expand(-1, -1, 2, -1))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("shift", [(0.1, -0.73), (-1.5, 2.25), (0.0, 0.5)])
def test_cubic_convolution_moves_parabolas_exactly(shift: tuple[float, float], dtype) -> None:
    def bowl(rows, columns):
        high = np.iinfo(dtype).max / 255
        return (20 + 0.2 * (rows - 12) ** 2 + 0.1 * (columns - 9) ** 2 + columns) * high

    rows, columns = np.mgrid[:25, :31].astype(float)
    moved = move(bowl(rows, columns).round()[None].astype(dtype), shift)
    want = bowl(rows - shift[0], columns - shift[1])
    inner = slice(4, -4)
    assert moved.dtype == dtype
    np.testing.assert_allclose(moved[0, inner, inner], want[inner, inner], atol=1.7)


def test_a_pair_may_differ_in_format_but_not_in_name_or_size(cells: Path) -> None:
    pairs = spec(name="cells", **PAIRS)
    y = cells / "cells" / "y"
    Image.open(y / "A01_s1.png").save(y / "A01_s1.tif")
    with pytest.raises(DataError, match="differ only in their ending"):
        load_split(pairs, cells, "train")
    (y / "A01_s1.png").unlink()
    x, partner = load_split(pairs, cells, "train").batch([0])
    assert partner is not None
    assert torch.allclose(x + partner, torch.ones_like(x))

    save(y / "A01_s2.png", noise(0, 20, 22))
    with pytest.raises(DataError, match=r"y/A01_s2\.png is 20×22 but its target .* is 20×23"):
        load_split(pairs, cells, "train")
    (y / "A01_s2.png").unlink()
    with pytest.raises(DataError, match=r"x/A01_s2\.png has no partner in y/"):
        load_split(pairs, cells, "train")
    with pytest.raises(DataError, match=r"no images in z/ \(folders there: x, y\)"):
        load_split(spec(name="cells", **(PAIRS | {"inputs": "z"})), cells, "train")


# --- sets -----------------------------------------------------------------------------------------


def test_a_streamed_set_gives_the_batches_of_a_resident_one(cells: Path) -> None:
    save(cells / "cells" / "x" / "B01_s1.png", noise(50, 20, 23, dtype=np.uint16))
    pairs = spec(name="cells", **PAIRS)
    resident = load_split(pairs, cells, "train", resident_limit_bytes=10**9)
    streamed = load_split(pairs, cells, "train", resident_limit_bytes=0)
    assert type(resident) is ImageSet
    assert isinstance(streamed, StreamedImageSet)
    for one, other in [
        (resident, streamed),
        (data.grid_patches(resident, 7), data.grid_patches(streamed, 7)),
        (resident.subset([3, 1]), streamed.subset(torch.tensor([3, 1]))),
    ]:
        assert one.names == other.names
        assert one.shape == other.shape
        assert len(one) == len(other)
        order = torch.randperm(len(one), generator=torch.Generator().manual_seed(0))
        for a, b in zip(one.batch(order), other.batch(order.tolist()), strict=True):
            assert torch.equal(a, b)
        assert torch.equal(one.batch([0])[0], other.to("cpu").batch([0])[0])
    save(cells / "cells" / "x" / "B01_s1.png", noise(50, 40, 30))
    save(cells / "cells" / "y" / "B01_s1.png", noise(50, 40, 30))
    mixed = spec(name="cells", patch=6, **PAIRS)
    one, other = (
        data.grid_patches(load_split(mixed, cells, "train", limit), 6) for limit in (None, 0)
    )
    assert one.names == other.names
    assert torch.equal(one.batch(range(len(one)))[0], other.batch(range(len(other)))[0])
    assert streamed.nbytes >= resident.nbytes == resident.x.nbytes + resident.y.nbytes


def test_values_are_scaled_by_their_bit_depth() -> None:
    eight = torch.tensor([[0, 51, 255]], dtype=torch.uint8)[None, None]
    sixteen = torch.tensor([[0, 51 * 257, 65535]], dtype=torch.int32).to(torch.uint16)[None, None]
    expected = torch.tensor([[0, 0.2, 1]])[None, None]
    for stored in (eight, sixteen):
        x, y = ImageSet(stored).batch([0])
        assert y is None
        assert x.dtype == torch.float32
        assert torch.equal(x, expected)
        assert torch.equal(ImageSet(stored).subset([0]).x, stored)


def test_a_mask_of_booleans_is_no_index() -> None:
    images = ImageSet(torch.zeros(3, 1, 2, 2, dtype=torch.uint8))
    with pytest.raises(DataError, match="booleans"):
        images.batch([True, False, True])
    with pytest.raises(DataError, match="3 images, 2 names"):
        ImageSet(images.x, None, ["a", "b"])


def test_images_of_different_sizes_are_covered_by_windows_of_one_size(photos: Path) -> None:
    big = noise(0, 30, 17, 3)
    save(photos / "photos" / "04.png", big)
    images = load_split(spec(patch=8), photos, "train")
    assert images.shape == (3, 12, 16)
    assert len(images) == 5 + 3 * 2
    seen = np.zeros((30, 17), bool)
    for name, pixels in zip(images.names, images.x, strict=True):
        if name.startswith("04.png@"):
            top, left = map(int, name.split("@")[1].split(","))
            seen[top : top + 12, left : left + 16] = True
            assert np.array_equal(pixels.permute(1, 2, 0), big[top : top + 12, left : left + 16])
    assert seen.all()
    assert [item.name for item in cover("a", (12, 16), (12, 16))] == ["a"]


# --- patches and augmentation ---------------------------------------------------------------------


def test_grid_patches_are_centred_disjoint_windows() -> None:
    pixels = torch.arange(11 * 17, dtype=torch.uint8).reshape(1, 1, 11, 17).repeat(2, 1, 1, 1)
    patches = data.grid_patches(ImageSet(pixels, pixels, ["a", "b"]), 4)
    assert len(patches) == 2 * 2 * 4
    assert patches.names[:5] == ["a@1,0", "a@1,4", "a@1,8", "a@1,12", "a@5,0"]
    assert torch.equal(patches.x[5, 0], pixels[0, 0, 5:9, 4:8])
    assert patches.x[:8].unique().numel() == 8 * 16
    assert torch.equal(patches.x, patches.y)
    assert data.grid_patches(patches, 0) is patches
    with pytest.raises(DataError, match=r"data\.patch is 12, the images are 11×17; use at most 11"):
        data.grid_patches(ImageSet(pixels), 12)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(b: int = 64, c: int = 1, h: int = 12, w: int = 12) -> torch.Tensor:
    return torch.rand(b, c, h, w, dtype=torch.float64, generator=generator(7))


@pytest.mark.parametrize("names", [(), ("flip",), ("symmetries",), ("affine",), ("affine", "flip")])
@pytest.mark.parametrize("patch", [0, 8])
def test_augmented_pairs_stay_registered_and_in_range(names: tuple[str, ...], patch: int) -> None:
    x = images()
    y = torch.cat([1 - x, 0.5 * x], dim=1)
    moved_x, moved_y = augment(x, y, names, patch, generator())
    again_x, _ = augment(x, y, names, patch, generator())
    assert moved_y is not None
    assert moved_x.shape[2:] == ((patch, patch) if patch else (12, 12))
    assert torch.equal(moved_x, again_x)
    assert torch.equal(moved_y[:, 1:], 0.5 * moved_x)
    inside = (moved_x + moved_y[:, :1]).amin() if "affine" not in names else torch.tensor(1.0)
    assert torch.isclose(inside, torch.tensor(1.0, dtype=inside.dtype))
    assert moved_x.min() >= 0
    assert moved_x.max() <= 1
    if names or patch:
        assert not torch.equal(augment(x, y, names, patch, generator(1))[0], moved_x)


def test_brightness_is_one_exposure_for_both_images_of_a_pair() -> None:
    """Log-uniform within 25 % either way (Kolmogorov–Smirnov at 1 in 10,000), and white stays."""
    x = torch.full((4000, 1, 2, 2), 0.4, dtype=torch.float64)
    moved_x, moved_y = augment(x, 0.5 * x, ["brightness"], generator=generator())
    assert torch.equal(moved_y, 0.5 * moved_x)
    factor = moved_x[:, 0, 0, 0] / 0.4
    assert torch.allclose(moved_x, 0.4 * factor[:, None, None, None].expand_as(x))
    place = (factor.log() / math.log(1.25) + 1) / 2
    assert place.min() >= 0
    assert place.max() <= 1
    assert (place.sort().values - torch.arange(1, 4001) / 4000).abs().max() < 2.2 / math.sqrt(4000)
    white, _ = augment(torch.ones_like(x), None, ["brightness"], generator=generator())
    assert white.max() == 1


def test_flip_is_an_involution_that_half_of_the_images_undergo() -> None:
    x = images(b=400)
    once, _ = augment(x, None, ["flip"], generator=generator())
    twice, _ = augment(once, None, ["flip"], generator=generator())
    assert torch.equal(twice, x)
    is_flipped = (once == x.flip(3)).all(dim=(1, 2, 3))
    assert (is_flipped | (once == x).all(dim=(1, 2, 3))).all()
    assert 160 < is_flipped.sum() < 240


def test_symmetries_are_the_eight_of_the_square_equally_often() -> None:
    x = images(b=1).expand(1600, 1, 12, 12)
    moved, _ = augment(x, None, ["symmetries"], generator=generator())
    square = [torch.rot90(x[0], k, (1, 2)) for k in range(4)]
    square += [turned.flip(2) for turned in square]
    counts = torch.stack([(moved == one).all(dim=(1, 2, 3)).sum() for one in square])
    assert counts.sum() == 1600
    assert (counts > 140).all()
    with pytest.raises(DataError, match="they are 12×10"):
        augment(images(w=10), None, ["symmetries"])


def test_crops_are_windows_anywhere_in_the_image() -> None:
    place = torch.arange(10 * 12, dtype=torch.float64).reshape(1, 1, 10, 12).expand(3000, 1, 10, 12)
    crops, _ = augment(place, None, (), 8, generator())
    corner = crops[:, 0, 0, 0]
    rows, columns = corner // 12, corner % 12
    grid = place[0, 0, :8, :8] + corner[:, None, None]
    assert torch.equal(crops[:, 0], grid)
    counts = torch.bincount((rows * 5 + columns).long(), minlength=15)
    assert len(counts) == 15
    assert (counts > 140).all()
    with pytest.raises(DataError, match=r"data\.patch is 11, the images are 10×12; use at most 10"):
        augment(place, None, (), 11)


def numbers(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_affine_maps_agree_with_exact_ones() -> None:
    x = images(b=2, c=3, h=12, w=16)
    still = transform(x, numbers(0, 0), numbers(1, 1), numbers(0, 0, 0, 0).reshape(2, 2))
    assert torch.allclose(still, x)
    shift = numbers(2, 1).expand(2, 2)  # right by 2, down by 1
    shifted = transform(x, numbers(0, 0), numbers(1, 1), shift)
    assert torch.allclose(shifted[:, :, 1:, 2:], x[:, :, :-1, :-2])
    assert shifted[:, :, 0].max() < 1e-12
    square = x[..., 2:14]  # the middle
    quarter = numbers(torch.pi / 2, -torch.pi / 2)
    turned = transform(x, quarter, numbers(1, 1), numbers(0, 0).expand(2, 2))[..., 2:14]
    assert torch.allclose(turned[0], torch.rot90(square[0], -1, (1, 2)), atol=1e-9)
    assert torch.allclose(turned[1], torch.rot90(square[1], 1, (1, 2)), atol=1e-9)
    ramp = torch.linspace(-1, 1, 16, dtype=torch.float64).expand(2, 1, 12, 16) / 4 + 0.5
    grown = transform(ramp, numbers(0, 0), numbers(2, 2), numbers(0, 0).expand(2, 2))
    assert torch.allclose(grown[..., 2:-2, :], (ramp[..., 2:-2, :] - 0.5) / 2 + 0.5)


def test_affine_moves_a_digit_only_a_little() -> None:
    dot = torch.zeros(500, 1, 29, 29, dtype=torch.float64)
    dot[:, 0, 14, 24] = 1.0  # ten pixels right of the centre
    moved, _ = augment(dot, None, ["affine"], generator=generator())
    mass = moved.sum(dim=(1, 2, 3))
    position = torch.arange(29, dtype=torch.float64) - 14
    right = (moved.sum(dim=2)[:, 0] @ position) / mass
    down = (moved.sum(dim=3)[:, 0] @ position) / mass
    assert 7.6 < right.min() < 8.8
    assert 11.2 < right.max() < 12.4
    assert 2.4 < down.abs().max() < 3.1


def test_an_unknown_augmentation_suggests_the_near_one() -> None:
    with pytest.raises(
        DataError, match="unknown augmentation 'symetry'; did you mean 'symmetries'"
    ):
        augment(images(), None, ["symetry"])
    with pytest.raises(DataError, match="known: crop, affine, flip, symmetries"):
        augment(images(), None, ["zzz"])


@pytest.mark.gpu
@pytest.mark.parametrize("names", [("flip",), ("symmetries",), ("affine",)])
def test_a_cpu_generator_augments_images_on_the_gpu(names: tuple[str, ...]) -> None:
    x = images(c=3)
    here, _ = augment(x, None, names, 8, generator())
    there, _ = augment(x.cuda(), None, names, 8, generator())
    assert there.is_cuda
    assert torch.allclose(here, there.cpu())
    stored = ImageSet(torch.from_numpy(noise(0, 5, 1, 4, 4, dtype=np.uint16)))
    assert torch.equal(stored.to("cuda").batch([3, 1])[0].cpu(), stored.batch([3, 1])[0])


# --- download, report, documentation --------------------------------------------------------------


def test_download_keeps_good_files_replaces_bad_ones_and_tries_every_mirror(tmp_path: Path) -> None:
    from hashlib import sha256

    good, bad, home = tmp_path / "good", tmp_path / "bad", tmp_path / "home"
    checksums = {}
    for i, key in enumerate(("train-images-idx3", "t10k-images-idx3")):
        write_idx(good / f"{key}-ubyte.gz", noise(i, 4, 5, 5))
        write_idx(bad / f"{key}-ubyte.gz", noise(9, 4, 5, 5))
        packed = (good / f"{key}-ubyte.gz").read_bytes()
        checksums[key] = sha256(gzip.decompress(packed)).hexdigest()
    mirrors = [f"{place.as_uri()}/" for place in (tmp_path / "gone", bad, good)]
    fetched = data.download("mnist", home, mirrors, checksums)
    assert [file.name for file in fetched] == [f"{key}-ubyte.gz" for key in checksums]
    assert data.download("mnist", home, mirrors, checksums) == []
    fetched[0].write_bytes(fetched[0].read_bytes()[:-5])
    assert data.download("mnist", home, mirrors, checksums) == fetched[:1]
    assert sorted(file.name for file in (home / "mnist").iterdir()) == sorted(
        f"{key}-ubyte.gz" for key in checksums
    )


def test_download_without_a_mirror_says_what_to_do_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="on another machine") as error:
        data.download("mnist", tmp_path, ["http://127.0.0.1:9/mnist/"])
    assert str(tmp_path / "mnist") in str(error.value)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DataError, match="only 'mnist' can"):
        data.download("faces256", tmp_path)


def test_status_tells_found_missing_broken_and_own_sets(cells: Path, digits: Path) -> None:
    (cells / "faces256.tar").write_bytes(b"no tar at all" * 100)
    save(cells / "cats256" / "a.png", noise(0, 4, 4))
    (cells / "[odd] folder").mkdir()
    rows = {row.name: row for row in data.status(cells)}
    assert {name: row.state for name, row in rows.items()} == {
        "mnist": "found",
        "faces256": "broken",
        "cats256": "found",
        "more_faces128": "missing",
        "shoes128": "missing",
        "cells_actin_dna": "missing",
        "cells": "yours",
    }
    assert (rows["mnist"].images, rows["cats256"].images, rows["cells"].images) == (27, 1, 20)
    assert str(cells / "shoes128.tar") in rows["shoes128"].todo
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(data.report(cells))
    text = console.export_text()
    assert "non-commercial research only" in text
    assert "folders x, y" in text


def test_long_names_and_paths_are_folded_and_no_column_is_cut(tmp_path: Path) -> None:
    name = "[red]" + "nuclei_of_one_plate_" * 4
    folder = tmp_path / ("a_long_way_down_" * 6) / ("[b]" + "still_further_" * 6)
    save(folder / name / "a.png", noise(0, 4, 4))
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(data.report(folder))
    text = console.export_text()
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in text
    head = next(line for line in lines if line.startswith("┃"))
    assert head.strip("┃").split("┃")[1:3] == [" state   ", " images "]
    cells = [line.strip("│").split("│") for line in lines if line.startswith("│")]
    assert name in "".join(row[0].strip() for row in cells)
    assert str(folder / name) in "".join(row[3].strip() for row in cells)
    title = text[: text.index("┏")]
    assert str(folder) in title.replace("\n", "").replace(" ", "")


def test_the_code_of_the_data_page_runs(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for i in range(5):
        save(Path("my_photos", f"{i}.jpg"), noise(i, 300, 400, 3))
    fields = {
        "w1": noise(1, 8, 12, dtype=np.uint16) // 20,
        "w4": noise(2, 8, 12, dtype=np.uint16) // 20,
    }
    for w, pixels in fields.items():
        for site in (1, 2, 3):
            save(Path(f"BBBC022_v1_images_20585{w}", f"IXMtest_A01_s{site}_{w}0F.tif"), pixels)
    found: dict = {}
    page = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
    for code in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL):
        exec(compile(code, "docs/data.md", "exec"), found)
    assert found["x"].shape == (2, 3, 256, 256)

    pairs = spec(
        name="cells_actin_dna", kind="pairs", inputs="actin_golgi", targets="dna", channels=1
    )
    cells = load_split(pairs, ".", "test")
    assert cells.names == ["A01_s2.png"]
    mean = fields["w1"][:2, :2].mean()
    assert cells.x[0, 0, 0, 0] == round(255 * np.clip((mean - 130) / 2070, 0, 1) ** 0.5)


def test_a_moved_edge_does_not_wrap_around() -> None:
    """The kernel overshoots beside an edge: white stays white, and does not become black."""
    edge = np.zeros((1, 1, 16), np.uint8)
    edge[..., 8:] = 255
    moved = move(edge, (0.0, 0.5)).astype(int)
    assert (np.diff(moved[0, 0]) >= 0).all()


# --- archives that lie ----------------------------------------------------------------------------


def header_of(tar: Path, number: int) -> tuple[bytearray, int]:
    """A tar's bytes, and where the header of one of its members begins."""
    with tarfile.open(tar) as opened:
        return bytearray(tar.read_bytes()), opened.getmembers()[number].offset_data - 512


def with_size(tar: Path, number: int, size: bytes) -> None:
    """Write another size into a header, and a checksum that is right."""
    content, at = header_of(tar, number)
    content[at + 124 : at + 136] = size
    tar.write_bytes(signed(content, at))


def signed(content: bytearray, at: int) -> bytearray:
    """With the checksum of a header."""
    content[at + 148 : at + 156] = b" " * 8
    content[at + 148 : at + 156] = f"{sum(content[at : at + 512]):06o}\0 ".encode()
    return content


def octal(size: int) -> bytes:
    return f"{size:011o}\0".encode()


def binary(size: int) -> bytes:
    return (b"\xff" if size < 0 else b"\x80") + (size % 256**11).to_bytes(11, "big")


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (octal(300 + 2 * 1536), "another file inside|should begin a header"),  # hides two pictures
        (octal(2000), "should begin a header|another file inside"),
        (binary(-512), "says it has -512 bytes"),
        (binary(2**45), f"says it has {2**45} bytes"),
        (octal(8**11 - 1), "says it has 8589934591 bytes"),
        (b"x" * 12, "truncated"),
    ],
)
def test_a_tar_whose_member_lies_about_its_size_is_refused(photos, size, message) -> None:
    tar = pack(photos, "photos")
    with_size(tar, 2, size)
    with pytest.raises(DataError, match=message):
        load_split(spec(), photos, "train")


def test_a_size_that_swallows_whole_members_is_refused_whoever_lies(photos) -> None:
    (photos / "photos" / "09_README").write_text("no picture")
    tar = pack(photos, "photos")  # 09_README comes first, in reverse order
    _, second = header_of(tar, 3)
    _, first = header_of(tar, 0)
    with_size(tar, 0, octal(second - first - 512))
    with pytest.raises(DataError, match="09_README has another file inside"):
        load_split(spec(), photos, "train")


def test_files_behind_the_end_of_a_tar_are_refused_and_a_tar_inside_is_not(photos) -> None:
    whole = pack(photos, "photos").read_bytes()
    (photos / "photos.tar").write_bytes(whole + whole)
    with pytest.raises(DataError, match="more files follow its end"):
        load_split(spec(), photos, "train")
    (photos / "inner.tar").write_bytes(whole)
    with tarfile.open(photos / "photos.tar", "w") as tar:
        tar.add(photos / "inner.tar", "inner.tar")
        for number in range(10):
            tar.addfile(info := tarfile.TarInfo(f"{number}.png"), None)
            assert info.size == 0
    with pytest.raises(DataError, match="10 of 10 files are no images"):
        load_split(spec(), photos, "train")


def test_a_sparse_tar_is_refused_before_its_zeros_are_made(photos) -> None:
    tar = pack(photos, "photos")
    content, at = header_of(tar, 0)
    content[at + 156 : at + 157] = b"S"
    content[at + 483 : at + 495] = binary(2**45)
    tar.write_bytes(signed(content, at))
    with pytest.raises(DataError, match="files with holes"):
        load_split(spec(), photos, "train")


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_and_foreign_names_are_read_as_tarfile_reads_them(tmp_path, form) -> None:
    names = ["a.png", "ü/é “2”.png", f"{'long/' * 18}{'b' * 80}.png", f"{'c' * 90}/{'d' * 60}.png"]
    if form != tarfile.USTAR_FORMAT:
        names.append(f"{'e' * 300}.png")
    save(tmp_path / "one.png", noise(0, 8, 8, 3))
    with tarfile.open(tmp_path / "photos.tar", "w", format=form) as tar:
        for name in names:
            tar.add(tmp_path / "one.png", name)
        tar.add(tmp_path, "folder", recursive=False)
    archive = open_archive(tmp_path, "photos")
    assert archive.names == sorted(names)
    for name in names:
        assert archive.open(name).read() == (tmp_path / "one.png").read_bytes()


def test_files_that_are_no_images_are_refused_by_name_in_whatever_split(photos) -> None:
    """In sorted names the last would be a test image, which training never opens."""
    for name in ("00a.png", "99.png"):
        (photos / "photos" / name).write_text("not a picture at all, whatever its name")
    with pytest.raises(DataError, match=r"2 of 12 files are no images.*: 00a\.png, 99\.png"):
        load_split(spec(), photos, "train")
    pack(photos, "photos")
    with pytest.raises(DataError, match=r"2 of 12 files are no images.*: 00a\.png, 99\.png"):
        load_split(spec(), photos, "train")


@pytest.mark.parametrize("shape", [(100, 0, 28), (0, 28, 28), (5, 5, 0)])
def test_an_idx_file_of_nothing_is_refused(digits, shape) -> None:
    write_idx(digits / "mnist" / "train-images-idx3-ubyte.gz", np.zeros(shape, np.uint8))
    with pytest.raises(DataError, match=r"values: none"):
        load_split(spec(name="mnist", kind="idx", split="files"), digits, "train")


def test_a_gzip_bomb_is_refused_before_it_is_unpacked(tmp_path) -> None:
    """Two hundred million zeros pack a thousand times smaller, whatever the header says of them."""
    file = tmp_path / "train-images-idx3-ubyte.gz"
    for shape in ((20, 1000, 1), (200, 1000, 1000), (4_000_000, 1000, 1000)):
        with gzip.open(file, "wb") as packed:
            packed.write(bytes([0, 0, 8, 3]) + struct.pack(">3I", *shape))
            for _ in range(200):
                packed.write(bytes(1_000_000))
        before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
        with pytest.raises(DataError, match=r"more than 100 times|should hold 20000 values"):
            read_idx(file)
        assert time.monotonic() - start < 0.5
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB


@pytest.mark.parametrize(("name", "fix"), [("photos", ""), ("mine", ", with data.name = 'photos'")])
def test_a_set_given_for_the_folder_around_it_is_noticed(photos, name, fix) -> None:
    with pytest.raises(DataError, match=r"has images itself \(00\.png, …\)") as error:
        load_split(spec(name=name), photos / "photos", "train")
    assert str(error.value).endswith(f"Give --data {photos}{fix}")


def test_idx_files_given_for_the_folder_around_them_are_noticed(digits) -> None:
    with pytest.raises(DataError, match=rf"has images itself .*Give --data {digits}$"):
        load_split(spec(name="mnist", kind="idx", split="files"), digits / "mnist", "train")


def test_channels_given_for_the_folder_around_them_are_noticed(cells) -> None:
    with pytest.raises(DataError, match=rf"has images itself \(x, …\).*Give --data {cells}$"):
        load_split(spec(name="cells", **PAIRS), cells / "cells", "train")
