"""One plane of every format that microscopes write, lazily; nothing is guessed."""

import json
import re
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tifffile
import zarr
from bombs import many_frames
from paint import (
    paint_field,
    write_all,
    write_imagej,
    write_ome_tiff,
    write_ome_zarr,
    write_plate,
)
from PIL import Image

from posterior_trees.cli import main
from posterior_trees.errors import DataError, MissingError
from posterior_trees.imaging.fields import list_fields
from posterior_trees.imaging.ome_zarr import attributes_of
from posterior_trees.imaging.source import Source, open_source

ALL = slice(None)


def test_every_format_gives_the_same_pixels(tmp_path: Path) -> None:
    field = paint_field()
    for kind, file in write_all(tmp_path, field).items():
        has_channels = kind in ("imagej", "ome", "pyramid", "zarr 0.4", "zarr 0.5")
        with open_source(file, channel="actin" if has_channels else None) as source:
            assert source.shape == (80, 112), kind
            assert source.dtype.newbyteorder("=") == np.uint16
            np.testing.assert_array_equal(source.read(ALL, ALL), field[1], kind)
            part = source.read(slice(31, 70), slice(5, 66))
            np.testing.assert_array_equal(part, field[1, 31:70, 5:66], kind)
            assert part.dtype == np.uint16
            expected = (0.65, 0.65, "µm") if has_channels else None
            assert source.pixel_size == pytest.approx(expected) if expected else (
                source.pixel_size is None
            )  # fmt: skip


def test_only_the_tiles_that_are_asked_for_are_read(tmp_path: Path) -> None:
    """Chunks and tiles elsewhere may even be broken."""
    field = paint_field(128, 128)
    folder = write_ome_zarr(tmp_path / "x.ome.zarr", field)
    (folder / "0/c/1/1/1").write_bytes(b"broken")
    file = write_ome_tiff(tmp_path / "x.ome.tif", field, tile=(64, 64), compression="zlib")
    with tifffile.TiffFile(file) as tiff:
        start = tiff.pages[1].dataoffsets[3]
    content = bytearray(file.read_bytes())
    content[start : start + 8] = b"\xff" * 8
    file.write_bytes(content)
    for path in (folder, file):
        with open_source(path, channel="Actin") as source:
            np.testing.assert_array_equal(source.read(slice(0, 64), slice(0, 128)), field[1, :64])
            with pytest.raises(DataError, match=rf"{re.escape(str(path))} is truncated or damaged"):
                source.read(slice(64, 128), slice(64, 128))


def test_levels_of_a_pyramid_are_not_frames(tmp_path: Path) -> None:
    file = write_ome_tiff(tmp_path / "p.ome.tif", paint_field(), subifds=1, tile=(32, 32))
    with open_source(file, channel=1) as source:
        assert source.stack.levels == 2
        assert source.stack.axes == "CYX"


@pytest.mark.parametrize("write", [write_ome_tiff, write_ome_zarr])
def test_a_channel_is_never_chosen_silently(tmp_path: Path, write) -> None:
    path = write(tmp_path / "field.ome.x", paint_field())
    message = (
        f"{path} has 2 channels (0 Hoechst, 1 Actin); the model takes one: add --channel Actin, "
        "or a number"
    )
    with pytest.raises(DataError, match=f"^{re.escape(message)}$"):
        open_source(path, hint="actin_golgi")
    with pytest.raises(DataError, match="add --channel Hoechst, or a number"):
        open_source(path, hint="hoechst")
    with pytest.raises(DataError, match=r"has no channel DAPI: it has 0 Hoechst, 1 Actin"):
        open_source(path, channel="DAPI")
    with pytest.raises(DataError, match="has no channel 2"):
        open_source(path, channel=2)
    for channel in ("ACTIN", "1", 1):
        with open_source(path, channel=channel) as source:
            assert source.channel == 1


def test_names_that_differ_by_case_are_told_apart(tmp_path: Path) -> None:
    file = write_ome_tiff(tmp_path / "f.ome.tif", paint_field(), names=("gfp", "GFP"))
    with open_source(file, channel="GFP") as source:
        assert source.channel == 1
    with pytest.raises(DataError, match="no channel Gfp"):
        open_source(file, channel="Gfp")


def test_what_a_file_does_not_say_is_not_guessed(tmp_path: Path) -> None:
    file = tmp_path / "stack.tif"
    planes = np.concatenate([paint_field(), paint_field(seed=1), paint_field(seed=2)])[:5]
    tifffile.imwrite(file, planes, photometric="minisblack", metadata=None)
    with tifffile.TiffFile(file) as tiff:
        axes = tiff.series[0].axes
    message = (
        f"{file} has axes {axes} and does not say what {axes[0]} is (5 planes): add --axes ZYX "
        "or CYX, then --at or --channel"
    )
    with pytest.raises(DataError, match=f"^{re.escape(message)}$"):
        open_source(file)
    for options in ({"axes": "ZYX", "at": {"z": 3}}, {"axes": "cyx", "channel": 3}):
        with open_source(file, **options) as source:
            np.testing.assert_array_equal(source.read(ALL, ALL), planes[3])
    with pytest.raises(DataError, match="has 3 axes"):
        open_source(file, axes="TCZYX")
    with pytest.raises(DataError, match="needs Y and X"):
        open_source(file, axes="TCZ")
    with pytest.raises(DataError, match="letters of TCZYXS"):
        open_source(file, axes="QYX")
    tifffile.imwrite(file, planes[:4])  # tifffile takes four planes for colours
    with pytest.raises(DataError, match=r"does not say what S is \(4 planes\): add --axes"):
        open_source(file)


def test_one_plane_of_time_and_depth_is_taken(tmp_path: Path) -> None:
    planes = np.stack([paint_field(40, 56, seed) for seed in range(6)]).reshape(2, 3, 2, 40, 56)
    files = [
        write_imagej(tmp_path / "ij.tif", planes, axes="TZCYX"),
        write_ome_tiff(tmp_path / "o.ome.tif", planes, axes="TZCYX"),
        write_ome_zarr(tmp_path / "z.ome.zarr", planes, axes="tzcyx"),
    ]
    for file in files:
        with pytest.raises(DataError, match=r"has 2 planes along T and 3 planes along Z; the model "
                           r"takes one: add --at t=0 z=0$"):  # fmt: skip
            open_source(file, channel=0)
        with pytest.raises(DataError, match="3 planes along Z, from 0: there is no --at z=3"):
            open_source(file, channel=0, at={"t": 1, "z": 3})
        with open_source(file, channel=1, at={"t": 1, "z": 2}) as source:
            np.testing.assert_array_equal(source.read(ALL, ALL), planes[1, 2, 1])
    with pytest.raises(DataError, match="--at z does not fit"):
        open_source(write_ome_tiff(tmp_path / "c.ome.tif", planes[0, 0]), channel=0, at={"z": 0})


def test_a_pixel_has_the_size_that_its_file_knows(tmp_path: Path) -> None:
    field = paint_field()[1]

    def size_of(path: Path, **options) -> tuple | None:
        with open_source(path, **options) as source:
            return source.pixel_size

    paper = tmp_path / "paper.tif"  # 72 dots per inch, as in BBBC022: of paper, not of cells
    tifffile.imwrite(paper, field, resolution=(72, 72), resolutionunit="INCH")
    assert size_of(paper) is None
    assert size_of(paper, pixel_size=0.5) == (0.5, 0.5, "µm")
    inches = tmp_path / "ij.tif"
    tifffile.imwrite(inches, field, imagej=True, resolution=(72, 72), metadata={"unit": "inch"})
    assert size_of(inches) is None
    nano = tmp_path / "n.ome.tif"
    sides = {f"PhysicalSize{a}{u}": v for a in "XY" for u, v in (("", 325.0), ("Unit", "nm"))}
    tifffile.imwrite(nano, field, metadata={"axes": "YX", **sides})
    assert size_of(nano) == pytest.approx((0.325, 0.325, "µm"))
    uneven = tmp_path / "u.ome.tif"
    tifffile.imwrite(uneven, field, metadata={"axes": "YX", **sides, "PhysicalSizeX": 400.0})
    with pytest.raises(DataError, match=r"pixels of 0\.325 × 0\.4 µm .* must be square"):
        open_source(uneven)
    assert size_of(uneven, pixel_size=0.4) == (0.4, 0.4, "µm")
    no_unit = write_ome_zarr(tmp_path / "u.ome.zarr", field, pixel=None, names=("A",), axes="yx")
    assert size_of(no_unit) is None


def test_labels_trees_and_other_folders_are_refused(tmp_path: Path) -> None:
    labels = write_ome_zarr(tmp_path / "x.ome.zarr", paint_field())
    zarr.open_group(labels).attrs.update(
        {"ome": {**attributes_of(labels)["ome"], "image-label": {}}}
    )
    with pytest.raises(DataError, match=rf"^{labels} holds labels, not an image$"):
        open_source(labels)
    plain = tmp_path / "y.ome.zarr"
    zarr.open_group(plain, mode="w")
    with pytest.raises(DataError, match=rf"^{plain} has no multiscales: not OME-Zarr 0.4 or 0.5$"):
        open_source(plain)
    for address in ("https://example.org/x.ome.zarr", "s3://bucket/x.zarr", Path("http://a/b.tif")):
        for read in (open_source, lambda path: list_fields([path])):
            with pytest.raises(DataError, match="not read over a network"):
                read(address)
    with pytest.raises(DataError, match="does not exist"):
        open_source(tmp_path / "nowhere.tif")


def read_all(path: Path, **options) -> np.ndarray:
    with open_source(path, **options) as source:
        return source.read(ALL, ALL)


@pytest.mark.parametrize("kind", ["plain", "strips", "tiles", "imagej", "ome"])
def test_truncated_tiff_is_an_error_and_not_zeros(tmp_path: Path, kind: str) -> None:
    field, file = paint_field(), tmp_path / "x.tif"
    options = {"strips": {"rowsperstrip": 8}, "tiles": {"tile": (32, 32), "compression": "zlib"}}
    if kind == "imagej":
        write_imagej(file, field)
    elif kind == "ome":
        write_ome_tiff(file, field)
    else:
        tifffile.imwrite(file, field[1], **options.get(kind, {}))
    channel = 1 if kind in ("imagej", "ome") else None
    assert read_all(file, channel=channel).shape == (80, 112)
    content = file.read_bytes()
    for length in (len(content) - 600, len(content) // 2, 100, 5):
        file.write_bytes(content[:length])
        with pytest.raises(DataError, match="Replace or remove it"):
            read_all(file, channel=channel)


def test_offsets_that_lie_are_noticed(tmp_path: Path) -> None:
    file = tmp_path / "x.tif"
    tifffile.imwrite(file, paint_field()[1], rowsperstrip=8, compression="zlib")
    original = file.read_bytes()
    for tag, value in (("StripOffsets", 60_000), ("StripOffsets", 0), ("StripByteCounts", 60_000),
                       ("StripByteCounts", 0)):  # fmt: skip
        file.write_bytes(original)
        with tifffile.TiffFile(file, mode="r+") as tiff:
            values = list(tiff.pages[0].tags[tag].value)
            tiff.pages[0].tags[tag].overwrite([*values[:3], value, *values[4:]])
        with pytest.raises(DataError, match="truncated or damaged"):
            read_all(file)


@pytest.mark.parametrize("ngff", ["0.4", "0.5"])
def test_missing_and_corrupt_chunks_are_errors(tmp_path: Path, ngff: str) -> None:
    folder = write_ome_zarr(tmp_path / "x.ome.zarr", paint_field(), ngff)
    chunk = folder / ("0/c/1/0/1" if ngff == "0.5" else "0/1/0/1")
    content = chunk.read_bytes()
    chunk.write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match="truncated or damaged"):
        read_all(folder, channel=1)
    chunk.unlink()
    with pytest.raises(DataError, match=r"lacks the chunk 0/.*1/0/1: copy it again"):
        read_all(folder, channel=1)
    with open_source(folder, channel=1) as source:
        shutil.rmtree(folder)  # a store that goes under its reader
        with pytest.raises(DataError, match="lacks the chunk"):
            source.read(slice(0, 8), slice(0, 8))


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_ome_zarr(tmp_path / "x.ome.zarr", paint_field())
    stack = write_ome_tiff(tmp_path / "x.ome.tif", paint_field())
    for module, path, what in (("zarr", folder, "OME-Zarr"), ("tifffile", stack, "stacks in TIFF")):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            with pytest.raises(RuntimeError) as caught:
                open_source(path, channel=0)
        assert str(caught.value) == (
            f"reading {what} needs {module}, which is not installed: "
            'pip install "posterior-trees[micro]"'
        )


def test_a_missing_codec_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    field = paint_field()[1]
    for packed in ("zlib", "lzw", "zstd"):
        tifffile.imwrite(tmp_path / f"{packed}.tif", field, tile=(32, 32), compression=packed)
    monkeypatch.setitem(sys.modules, "imagecodecs", None)
    for packed in ("zlib", "lzw", "zstd"):
        with open_source(tmp_path / f"{packed}.tif") as source:
            if packed == "zlib":
                np.testing.assert_array_equal(source.read(ALL, ALL), field)
            else:
                with pytest.raises(MissingError, match="compressed TIFF needs imagecodecs, which"):
                    source.read(ALL, ALL)


def test_photographs_stay_with_pillow(tmp_path: Path) -> None:
    """Colours become grey, palettes are looked up, and the camera's turn is undone, as before."""
    rng = np.random.default_rng(0)
    colours = rng.integers(0, 255, (20, 30, 3)).astype(np.uint8)
    picture = Image.fromarray(colours)
    picture.save(tmp_path / "rgb.tif")
    picture.quantize(8).save(tmp_path / "palette.tif")
    turned = picture.convert("L")
    exif = Image.Exif()
    exif[0x0112] = 6
    turned.save(tmp_path / "turned.tif", exif=exif)
    Image.fromarray(colours[..., 0] > 99).save(tmp_path / "bits.tif")
    assert (read_all(tmp_path / "rgb.tif") == np.asarray(picture.convert("L"))).all()
    palette = picture.quantize(8).convert("L")
    assert np.abs(read_all(tmp_path / "palette.tif").astype(int) - np.asarray(palette)).max() <= 1
    assert read_all(tmp_path / "turned.tif").shape == (30, 20)
    assert set(np.unique(read_all(tmp_path / "bits.tif"))) == {0, 255}
    assert (read_all(tmp_path / "bits.tif") == 255 * (colours[..., 0] > 99)).all()


def test_axes_may_lie_the_other_way(tmp_path: Path) -> None:
    field = paint_field()[1]
    folder = write_ome_zarr(tmp_path / "x.ome.zarr", field, names=("A",), axes="yx")
    with open_source(folder, axes="XY") as source:
        assert source.shape == (112, 80)
        np.testing.assert_array_equal(source.read(slice(3, 9), slice(2, 5)), field.T[3:9, 2:5])


def test_numbers_that_are_not_of_8_or_16_bits_stay_as_they_are(tmp_path: Path) -> None:
    values = (paint_field()[1] * 3.5).astype(np.float32)
    tifffile.imwrite(tmp_path / "f.tif", values)
    tifffile.imwrite(tmp_path / "i.tif", values.astype(np.int32))
    for name in "fi":
        with open_source(tmp_path / f"{name}.tif") as source:
            stored = source.read_stored(ALL, ALL)
        assert stored.dtype == np.float32
        assert stored.shape == (1, 80, 112)
        np.testing.assert_allclose(stored[0], values, atol=1)


@pytest.mark.parametrize("ngff", ["0.4", "0.5"])
def test_a_plate_is_its_fields(tmp_path: Path, ngff: str) -> None:
    plate = write_plate(tmp_path / "plate.ome.zarr", ngff=ngff)
    fields = list_fields([plate])
    assert [(f.name, f.plate, f.well, f.site) for f in fields] == [
        ("A1_0", "plate", "A1", "0"), ("A1_1", "plate", "A1", "1"),
        ("B2_0", "plate", "B2", "0"), ("B2_1", "plate", "B2", "1"),
    ]  # fmt: skip
    np.testing.assert_array_equal(read_all(fields[3].path, channel=1), paint_field(seed=11)[1])
    assert list_fields([plate / "B/2"]) == fields[2:]
    shutil.rmtree(plate / "B/2")
    with pytest.raises(DataError, match="names the well B2, which is not there"):
        list_fields([plate])


def test_a_folder_is_its_pictures_in_natural_order(tmp_path: Path) -> None:
    for site in (10, 9, 1):
        for wave in (1, 4):
            tifffile.imwrite(tmp_path / f"XY_A01_s{site}_w{wave}ABC.tif", paint_field()[1])
    (tmp_path / ".hidden.tif").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("no picture")
    write_ome_zarr(tmp_path / "z.ome.zarr", paint_field())
    fields = list_fields([tmp_path], "*_w4*.tif")
    assert [f.site for f in fields] == ["1", "9", "10"]
    assert {f.well for f in fields} == {"A01"}
    assert fields[0].name == "XY_A01_s1_w4ABC"
    assert len(list_fields([tmp_path])) == 7
    assert list_fields([tmp_path])[-1].name == "z"
    assert list_fields([tmp_path], "*w1*", r"(?P<well>XY)")[0][3:] == ("XY", "")
    with pytest.raises(DataError, match=r"without pictures; none of 7 fits --filter \*\.nd2"):
        list_fields([tmp_path], "*.nd2")
    with pytest.raises(ValueError, match=r"no group \(\?P<well>"):
        list_fields([tmp_path], pattern="x")
    with pytest.raises(ValueError, match="--well-pattern \\("):
        list_fields([tmp_path], pattern="(")


def test_inspect_says_what_is_there_and_reads_no_pixels(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    plate = write_plate(tmp_path / "plate.ome.zarr")
    file = write_ome_tiff(tmp_path / "field.ome.tif", paint_field(), subifds=1)
    monkeypatch.setattr(Source, "read", lambda *_: pytest.fail("pixels were read"))
    main(["inspect", str(plate), str(file), "--channel", "Actin"])
    said = capsys.readouterr().out
    assert f"{plate}/A/1/0 (plate A1 0) and 3 more like it" in said
    assert "OME-Zarr 0.5, 2 levels" in said
    assert "CYX, 2×80×112, uint16" in said
    assert "0 Hoechst, 1 Actin" in said
    assert "0.65 × 0.65 µm" in said
    assert "channel 1 Actin, 80×112 (height×width)" in said
    main(["inspect", str(file)])
    assert "add --channel Actin, or a number" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["inspect", str(file), "--at", "q=1"])
    assert "--at q=1: write t=0 or z=0" in capsys.readouterr().err


def test_inspect_says_what_predict_says_of_many_frames(tmp_path: Path, capsys) -> None:
    (tmp_path / "many.gif").write_bytes(many_frames(3))
    tifffile.imwrite(tmp_path / "one.tif", paint_field()[1])
    with pytest.raises(SystemExit) as ended:
        main(["inspect", *map(str, sorted(tmp_path.iterdir())), str(tmp_path / "nowhere.tif")])
    out, err = capsys.readouterr()
    assert ended.value.code == 1
    assert "80×112" in out
    assert "holds more than one image" in err
    assert "nowhere.tif does not exist" in err


@pytest.mark.parametrize(("kind", "name"), [("well", "../../B"), ("plate", "A/../..")])
def test_a_plate_has_its_fields_inside(tmp_path: Path, kind: str, name: str) -> None:
    """Results lie where fields do: names that lead out of a plate would write anywhere."""
    plate = write_plate(tmp_path / "p.ome.zarr", ("A/1",), 1, "0.4")
    file = plate / ("A/1" if kind == "well" else "") / ".zattrs"
    text = file.read_text()
    changed = re.sub(r'"path": "(0|A/1)"', f'"path": "{name}"', text)
    assert changed != text
    file.write_text(changed)
    with pytest.raises(DataError, match=re.escape(f"in '{name}'")):
        list_fields([plate])


@pytest.mark.parametrize("facts", [{"plate": []}, {"plate": {"wells": 3}}, {"plate": {}},
                                   {"plate": {"wells": [{"path": "A/1"}, {}]}}])  # fmt: skip
def test_a_plate_of_the_wrong_types_is_refused(tmp_path: Path, facts: dict) -> None:
    plate = write_plate(tmp_path / "p.ome.zarr", ("A/1",), 1, "0.4")
    (plate / ".zattrs").write_text(json.dumps(facts))
    with pytest.raises(DataError, match="damaged"):
        list_fields([plate])


@pytest.mark.parametrize("name", ["SizeT", "SizeC"])
def test_a_description_cannot_ask_for_all_of_the_memory(tmp_path: Path, name: str) -> None:
    """Twenty kilobytes that name 10¹⁰ planes took gigabytes, and never ended."""
    with tifffile.TiffFile(write_ome_tiff(tmp_path / "a.ome.tif", paint_field())) as tiff:
        text = re.sub(f'{name}="."', f'{name}="10000000000"', tiff.ome_metadata)
    tifffile.imwrite(
        tmp_path / "a.ome.tif", paint_field(), description=text.encode(), metadata=None
    )
    start = time.monotonic()
    with pytest.raises(DataError, match="takes more than 4 GB"):
        open_source(tmp_path / "a.ome.tif", channel=0)
    assert time.monotonic() - start < 25


def test_chunks_are_no_larger_than_what_is_read(tmp_path: Path) -> None:
    """A chunk of 2 GB of zeros is a file of 70 kB."""
    folder = write_ome_zarr(tmp_path / "a.ome.zarr", paint_field())
    group = zarr.open_group(folder, mode="a")
    group.create_array("0", shape=(2, 80, 112), chunks=(1, 30_000, 36_000), dtype="uint16",
                       overwrite=True)  # fmt: skip
    with pytest.raises(DataError, match=r"chunks or tiles of 2.16 GB, the limit is 1.07"):
        open_source(folder, channel=0)


def test_a_process_that_changes_its_folder_still_finds_its_files(
    tmp_path: Path, monkeypatch
) -> None:
    """The decoder was started in another one."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        tifffile.imwrite(tmp_path / name / f"{name}.tif", np.zeros((9, 8), np.uint16))
        monkeypatch.chdir(tmp_path / name)
        with open_source(f"{name}.tif") as source:
            assert source.shape == (9, 8)
