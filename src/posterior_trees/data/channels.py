"""Pairs that are two channels of one picture: y is `data.inputs = {channel = "Actin"}` of it, x
`data.targets = {channel = "Hoechst"}`.

`DIR/name` is a folder of such pictures (OME-TIFF, ImageJ, OME-Zarr), a plate, or one picture.
Nothing is guessed: a picture that has more planes than one of each channel is refused.
"""

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from posterior_trees.data.stream import RawPair
from posterior_trees.errors import DataError, MissingError
from posterior_trees.imaging.decode import Header, fit_values
from posterior_trees.imaging.fields import list_fields
from posterior_trees.imaging.source import UNEVEN, Plane, Source, choose_plane, open_any, open_stack
from posterior_trees.recipe.sections import Channel, DataSpec

ALL = slice(None)


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
