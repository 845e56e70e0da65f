"""Options of every command that reads a user's picture: its size, which of its values are black and
white, or what is to be found in it."""

import argparse
from typing import TYPE_CHECKING

from posterior_trees.cli.options import AUTO, level
from posterior_trees.errors import InputError

if TYPE_CHECKING:
    from posterior_trees.imaging.source import Plane
    from posterior_trees.pictures.reading import Reading


def add_adjustment(parser: argparse.ArgumentParser) -> None:
    """What `pictures.reading.Reading` is made of: `--scale`, `--levels LO HI`, `--gamma` and
    `--invert`, in this order, or `--digit`; `--resize`, and `--clean` or `--measured`."""
    parser.add_argument("--scale", type=scale, default=1.0, metavar="FACTOR", help="bring it to "
                        "the model's magnification, 1/2: half as high and wide, means of 2×2 "
                        "pixels; auto: by the sizes of their pixels [1]")  # fmt: skip
    parser.add_argument("--levels", type=level, nargs="+", metavar="LO HI", help="then stored "
                        "values become black and white; predict takes auto too: those of 0.1 and "
                        "99.9 %% of all pixels of all fields")  # fmt: skip
    parser.add_argument("--gamma", type=float, default=1.0, help="then raise to this power [1]")
    parser.add_argument("--invert", action="store_true", help="then exchange black and white")
    parser.add_argument("--digit", action="store_true", help="find the handwritten digit in each "
                        "photograph, for models of digits; instead of the above")  # fmt: skip
    parser.add_argument("--resize", action="store_true", help="cut and resize to the size that "
                        "the model takes, if it takes one only")  # fmt: skip
    parser.add_argument("--align", type=float, nargs=4, metavar=("X1", "Y1", "X2", "Y2"),
                        help="cut portraits around both eyes, given in pixels, for models of "
                        "faces")  # fmt: skip
    parser.add_argument("--lines", action="store_true", help="make thin black lines of drawings, "
                        "for models of edge maps")  # fmt: skip
    known = parser.add_mutually_exclusive_group()
    known.add_argument("--clean", action="store_true", help="the pictures are clean images: "
                       "measure them first [only for a hole or a lost colour]")  # fmt: skip
    known.add_argument("--measured", action="store_true", help="the pictures are measurements: no "
                       "truth is known [noise, a lower resolution, another channel]")  # fmt: skip


def scale(text: str) -> float | None:
    """`0.5`, `1/2`, or None for `auto`."""
    above, _, below = text.partition("/")
    if text == "auto":
        return None
    if not (divisor := float(below or 1)):
        raise ValueError(f"{text} divides by zero")
    return float(above) / divisor


def make_reading(arguments: argparse.Namespace) -> "Reading":
    """What the options do to a picture."""
    from posterior_trees.pictures.reading import Reading

    names = ("resize", "digit", "align", "lines", "scale", "levels", "gamma", "invert")
    refuse_auto(arguments)
    is_clean = True if arguments.clean else False if arguments.measured else None
    options = {name: getattr(arguments, name) for name in names}
    if hasattr(arguments, "axes"):
        options["plane"] = make_plane(arguments)
    return Reading.of(is_clean=is_clean, **options)


def refuse_auto(arguments: argparse.Namespace) -> None:
    """Only a batch has levels of its own: one picture's hide how bright it is."""
    if AUTO in (arguments.levels or ()):
        raise InputError("--levels auto stands alone, and is for ptrees predict: give two numbers")


def add_plane(parser: argparse.ArgumentParser) -> None:
    """Which pictures of a folder, and which plane of a stack."""
    parser.add_argument("--axes", metavar="CYX", help="what the axes of a stack are, of TCZYXS, "
                        "if its file does not say so or is wrong")  # fmt: skip
    parser.add_argument("--channel", metavar="NAME", help="channel, by its name or number from 0")
    parser.add_argument("--at", nargs="+", default=[], metavar="t=0", help="plane of T and of Z: "
                        "--at t=0 z=2, from 0")  # fmt: skip
    parser.add_argument("--series", type=int, default=0, metavar="N", help="image of a file that "
                        "has several, from 0 [0]")  # fmt: skip
    parser.add_argument("--pixel-size", type=float, metavar="UM", help="side of a pixel in µm, if "
                        "the file does not say so or is wrong")  # fmt: skip
    parser.add_argument("--filter", metavar="GLOB", help="of folders take these: '*_w4*.tif'")
    parser.add_argument("--well-pattern", metavar="REGEX", help="where names of files have the "
                        "groups well and site [_A01_s1]")  # fmt: skip


def make_plane(arguments: argparse.Namespace) -> "Plane":
    """The plane that the options mean."""
    from posterior_trees.imaging.source import Plane

    at = {}
    for text in arguments.at:
        letter, _, number = text.partition("=")
        if letter.lower() not in ("t", "z") or not number.isdecimal():
            raise InputError(f"--at {text}: write t=0 or z=0, planes count from 0")
        at[letter.upper()] = int(number)
    return Plane(arguments.axes, arguments.channel, arguments.series, at, arguments.pixel_size)
