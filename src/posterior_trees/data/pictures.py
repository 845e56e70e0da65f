"""Which files make one picture: a file of x, and in paired sets the file of y that belongs to it.

Pairs are two folders, one per channel. Files belong together when their paths inside the folders
are the same up to the ending: `actin/plate1/A01.png` and `dna/plate1/A01.tif`.

Or they are two channels of one picture: y is `data.inputs = {channel = "Actin"}` of it, x
`data.targets = {channel = "Hoechst"}`. `DIR/name` is a folder of such pictures (OME-TIFF, ImageJ,
OME-Zarr), a plate, or one picture. Nothing is guessed: a picture that has more planes than one of
each channel is refused.

More images for training only may lie in sets beside the recipe's own, whose splits they do not
touch: `data.extra = ["more_faces128"]` adds all images of that set, cut and resized as the recipe's
own are. Their names say where they come from: `extra:more_faces128/0001.webp`.
"""

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from io import BufferedReader, BytesIO
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from posterior_trees.data.archive import Archive, open_archive
from posterior_trees.data.registry import what_to_put
from posterior_trees.data.stream import RawPair, in_threads
from posterior_trees.errors import DataError, MissingError
from posterior_trees.imaging.decode import (
    Header,
    Stored,
    decode,
    decode_raw,
    fit_values,
    looks_like_image,
    read_header,
)
from posterior_trees.imaging.fields import list_fields
from posterior_trees.imaging.source import UNEVEN, Plane, Source, choose_plane, open_any, open_stack
from posterior_trees.recipe.sections import Channel, DataSpec

EXTRA = "extra:"
ALL = slice(None)


class Picture(NamedTuple):
    """The files of x and of y (None unless the set is paired) inside the archive."""

    x: str
    y: str | None = None


class Files:
    """The pictures of an archive by name."""

    def __init__(self, archive: Archive, spec: DataSpec) -> None:
        self.archive, self.spec, self.where = archive, spec, archive.where
        self.pictures = {name: Picture(name) for name in archive.names}
        if spec.kind == "pairs":
            self.pictures = list_pairs(archive, *folders_of(spec))
        self.names = list(self.pictures)

    def headers(self, names: Sequence[str]) -> list[Header]:
        """Size of pictures, and whether x or y has 16 bits; x and y must be of one size."""
        return list(in_threads(self._header, names))

    def _header(self, name: str) -> Header:
        picture, found = self.pictures[name], []
        for file in filter(None, picture):
            with self.archive.open(file) as opened:
                found.append(read_header(opened, f"{self.where}: {file}"))
        x, y = found[0], found[-1]
        if (x.height, x.width) != (y.height, y.width):
            raise DataError(
                f"{self.where}: {picture.y} is {y.height}×{y.width} but its target {picture.x} is "
                f"{x.height}×{x.width}. Make them the same size, pixel on pixel"
            )
        return x._replace(is_deep=x.is_deep or y.is_deep)

    def read(self, name: str) -> RawPair:
        """The pixels of x and of y."""
        x, y = self.pictures[name]
        clean = self._read(x, self.spec.channels)
        return clean, None if y is None else self._read(y, self.spec.input_channels)

    def _read(self, file: str, channels: int) -> Stored:
        as_stored = decode_raw if self.spec.levels else decode
        with self.archive.open(file) as opened:
            return as_stored(opened, f"{self.where}: {file}", channels, tuple(self.spec.size))

    def path(self, name: str) -> Path:
        """The file that knows the size of a pixel, unless it is in a tar."""
        x, y = self.pictures[name]
        return self.where / (y or x)

    def check_are_images(self) -> None:
        """Refuse files that are no images by their first bytes, all of them by name: also in the
        splits that are not opened, where each would have taken an image's place."""

        def is_image(file: str) -> bool:
            with self.archive.open(file) as opened:
                return looks_like_image(opened.read(16))

        files = [file for picture in self.pictures.values() for file in picture if file]
        found = zip(files, in_threads(is_image, files), strict=True)
        if wrong := [file for file, is_one in found if not is_one]:
            raise DataError(
                f"{self.where}: {len(wrong)} of {len(files)} files are no images, whatever their "
                f"names: {', '.join(wrong[:5])}{', …' if wrong[5:] else ''}. Replace or remove "
                f"{'them' if wrong[1:] else 'it'}"
            )


class Fields:
    """The pictures of a set by name; those of a plate by plate, well and number: `plate/A1_0`."""

    def __init__(self, where: Path, spec: DataSpec) -> None:
        self.where, self.size = where, tuple(spec.size)
        sides = spec.targets, spec.inputs
        self.channels = [side.channel for side in sides if isinstance(side, Channel)]
        found = list_fields([where])
        self.places = {f"{f.plate}/{f.name}" if f.plate else f.path.name: f.path for f in found}
        self.names = sorted(self.places)

    def headers(self, names: Sequence[str]) -> list[Header]:
        """Size and depth of pictures, whose pixels are not read yet."""
        found = []
        for name in names:
            with self._planes(name) as (plane, _):
                found.append(Header(*plane.shape, plane.dtype.itemsize > 1, 1))
        return found

    def path(self, name: str) -> Path:
        return self.places[name]

    def read(self, name: str) -> RawPair:
        """The values of x and of y, as the camera counted them."""
        with self._planes(name) as planes:
            x, y = (fit_values(p.read(ALL, ALL), p.name, 1, self.size) for p in planes)
        return x, y

    @contextmanager
    def _planes(self, name: str) -> Generator[list[Source], None, None]:
        stack = open_any(self.places[name], Plane())
        try:
            yield [choose_plane(stack, Plane(channel=channel)) for channel in self.channels]
        except DataError as error:
            if " --" not in str(error):
                raise
            raise DataError(
                f"{error}. Training has no such option: save what it is to see in a file of its own"
            ) from error
        finally:
            stack.close()


def folders_of(spec: DataSpec) -> tuple[str, ...]:
    """The two folders of pairs; none of pairs that are channels of one picture."""
    sides = spec.inputs, spec.targets
    return tuple(side for side in sides if not isinstance(side, Channel))


def open_fields(folder: Path, spec: DataSpec) -> Fields | None:
    """The set of a recipe, if it is there."""
    where = folder / spec.name
    if (folder / f"{spec.name}.tar").is_file() and not where.exists():
        raise DataError(f"{where}.tar: channels are read from files, not from a tar. Unpack it")
    return Fields(where, spec) if where.exists() else None


def check_channels(spec: DataSpec) -> None:
    """Errors that can be seen without looking at any image."""
    if len(folders_of(spec)) == 2:
        return
    if folders_of(spec) or spec.kind != "pairs":
        raise DataError(
            'data.inputs = {channel = …} needs data.targets = {channel = …} and data.kind = "pairs"'
        )
    if spec.channels != 1 or spec.input_channels != 1:
        raise DataError(
            f"data.channels is {spec.channels} and data.input_channels {spec.input_channels}; "
            "channels of a picture are grey: set both to 1"
        )


def pixel_size_of(files: Iterable[Path]) -> float | None:
    """The side of a pixel in µm, if the files know it and say the same."""
    found = set()
    for file in files:
        stack = None
        with suppress(DataError, MissingError):
            stack = open_stack(file)
        if stack is None or stack.pixel_size is None:
            return None
        y, x = stack.pixel_size
        found.add(round(y, 6) if abs(y - x) <= UNEVEN * min(y, x) else 0.0)
        stack.close()
    return (found.pop() or None) if len(found) == 1 else None


def list_pairs(archive: Archive, inputs: str, targets: str) -> dict[str, Picture]:
    """Every pair of the archive, by the name inside the folder of targets."""
    ys, xs = _channel(archive, inputs), _channel(archive, targets)
    for files, other, missing in ((ys, xs, targets), (xs, ys, inputs)):
        for key, file in files.items():
            if key not in other:
                raise DataError(
                    f"{archive.where}: {file} has no partner in {missing}/. "
                    "Add the file of that name, or remove this one"
                )
    return {xs[key].removeprefix(f"{targets}/"): Picture(xs[key], ys[key]) for key in xs}


def _channel(archive: Archive, channel: str) -> dict[str, str]:
    """The files of a channel by their path inside it without the ending."""
    files: dict[str, str] = {}
    for name in archive.names:
        if name.startswith(f"{channel}/"):
            key = PurePosixPath(name.removeprefix(f"{channel}/")).with_suffix("").as_posix()
            if key in files:
                raise DataError(
                    f"{archive.where}: {files[key]} and {name} differ only in their ending. "
                    "Remove one of them"
                )
            files[key] = name
    if not files:
        found = sorted({name.split("/")[0] for name in archive.names if "/" in name})
        raise DataError(
            f"{archive.where} has no images in {channel}/ (folders there: "
            f"{', '.join(found) or 'none'}). Add it, or correct data.inputs and data.targets"
        )
    return files


def prefix_of(name: str) -> str:
    """What the names of an extra set begin with."""
    return f"{EXTRA}{name}/"


class Extended:
    """A set and its extras as one archive."""

    def __init__(self, own: Archive, spec: DataSpec, folder: Path) -> None:
        self.own, self.where, self.extras = own, own.where, {}
        for name in spec.extra:
            archive = open_archive(folder, name)
            if archive is None:
                raise DataError(f"data.extra: {what_to_put(name, folder, spec.kind)}")
            self.extras[prefix_of(name)] = archive
        sets = self.extras.items()
        self.added = [prefix + file for prefix, archive in sets for file in archive.names]
        self.names = own.names + self.added

    def open(self, name: str) -> BufferedReader | BytesIO:
        for prefix, archive in self.extras.items():
            if name.startswith(prefix):
                return archive.open(name.removeprefix(prefix))
        return self.own.open(name)


def check_extra(spec: DataSpec) -> None:
    """Errors that can be seen without looking at any image."""
    if spec.extra and spec.kind not in ("images", "edges"):
        raise DataError(
            f"data.extra is {list(spec.extra)}, but data.kind is {spec.kind!r}: only sets of "
            "single images ('images', 'edges') can be extended. Put the files into the set itself"
        )
    if spec.name in spec.extra or len(set(spec.extra)) < len(spec.extra):
        raise DataError(
            f"data.extra is {list(spec.extra)}: each set once, and not {spec.name!r}, whose test "
            "images must not train"
        )


def check_extra_images(spec: DataSpec, names: list[str], headers: Sequence[Header]) -> None:
    """Refuse extra images that would teach something else: blur, or missing colours."""
    if own_names(names) == names:
        return
    files = dict(zip(names, headers, strict=True))
    least = min(_zoom(spec, files[name]) for name in own_names(names))
    for name in spec.extra:
        theirs = [files[file] for file in names if file.startswith(prefix_of(name))]
        small = min(theirs, key=lambda header: _zoom(spec, header))
        if _zoom(spec, small) < min(least, 1):
            raise DataError(
                f"data.extra: {name} has images of {small.height}×{small.width}, which data.size = "
                f"{list(spec.size)} would enlarge and blur. Lower data.size, or leave {name} out"
            )
        channels = {header.channels for header in theirs}
        if channels != {spec.channels} and len(channels) == 1:
            kinds = {1: "grey", 3: "in colour"}
            raise DataError(
                f"data.extra: the images of {name} are {kinds[channels.pop()]}, and data.channels "
                f"is {spec.channels}. Leave {name} out, convert its files, or set data.channels"
            )


def own_names(names: Sequence[str]) -> list[str]:
    """Those of the set itself."""
    return [name for name in names if not name.startswith(EXTRA)]


def _zoom(spec: DataSpec, header: Header) -> float:
    """By how much an image shrinks on its way to `data.size`; below 1 it is enlarged."""
    if not spec.size:
        return 1.0
    return min(header.height / spec.size[0], header.width / spec.size[1])
