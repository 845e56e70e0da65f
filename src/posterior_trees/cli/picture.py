"""Options of every command that reads a user's picture: its size, which of its values are black and
white, or that it shows a digit."""

import argparse


def add_adjustment(parser: argparse.ArgumentParser) -> None:
    """`--scale` (`pictures/size.py`), `--levels LO HI`, `--gamma` and `--invert`, in this order
    (`pictures/adjust.py`), or `--digit` (`pictures/digit.py`)."""
    parser.add_argument("--scale", type=float, default=1.0, metavar="FACTOR", help="bring it to "
                        "the model's magnification, 0.5: half as high and wide [1]")  # fmt: skip
    parser.add_argument("--levels", type=float, nargs=2, metavar=("LO", "HI"),
                        help="then stored values become black and white")  # fmt: skip
    parser.add_argument("--gamma", type=float, default=1.0, help="then raise to this power [1]")
    parser.add_argument("--invert", action="store_true", help="then exchange black and white")
    parser.add_argument("--digit", action="store_true", help="find the handwritten digit in each "
                        "photograph, for models of digits; instead of the above")  # fmt: skip
