"""`ptrees explore`: the page, served to this machine or saved as one file."""

import argparse
import sys
from pathlib import Path
from typing import Any

from posterior_trees.cli.model import add_model, find_measures, load_model
from posterior_trees.cli.options import add_device, add_measure
from posterior_trees.cli.picture import add_adjustment, make_reading
from posterior_trees.errors import InputError

PORT = 8765


def add(commands: Any) -> None:
    parser = commands.add_parser("explore", help="walk trees of your own pictures in a browser")
    add_model(parser)
    parser.add_argument("images", nargs="*", type=Path, default=[], metavar="IMAGE",
                        help="pictures to begin with")  # fmt: skip
    parser.add_argument("--host", default="127.0.0.1", help="address to serve [127.0.0.1]")
    parser.add_argument("--port", type=int, default=PORT, help=f"port, 0: any free one [{PORT}]")
    parser.add_argument("--save", type=Path, metavar="HTML", help="write one file, serve nothing")
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser")
    add_adjustment(parser)
    add_device(parser)
    parser.add_argument("--compare", action="append", default=[], metavar="NAME=TREES",
                        help="another method's trees of the same pictures (Tree.save)")  # fmt: skip
    add_measure(parser, "a histogram over the leaves of")
    parser.set_defaults(run=run_explore)


def run_explore(arguments: argparse.Namespace) -> None:
    from posterior_trees.models.card import describe_model, title_of
    from posterior_trees.serve.growths import Growths
    from posterior_trees.serve.start import describe_start

    reading = make_reading(arguments)
    predictor = load_model(arguments, arguments.device)
    found = find_measures(predictor, arguments.measure)
    measures = {name.rpartition(":")[2].replace("_", " "): f for name, f in found.items()}
    growths = Growths(predictor, measures) if not arguments.save else None
    examples = describe_start(
        predictor, arguments.images, reading, measures=measures, growths=growths,
        rivals=[split_rival(text) for text in arguments.compare],
        warn=lambda message: print(f"ptrees explore: {message}", file=sys.stderr, flush=True),
    )  # fmt: skip
    words: dict[str, Any] = {"title": title_of(predictor), "model_card": describe_model(predictor)}
    if arguments.save:
        save(arguments.save, predictor, examples, words)
        return
    from posterior_trees.serve.listen import serve
    from posterior_trees.serve.server import make_app

    app = make_app(predictor, examples=examples, host=arguments.host, measures=measures,
                   reading=reading, growths=growths, **words)  # fmt: skip
    serve(app, arguments.host, arguments.port, is_shown=not arguments.no_browser)


def save(file: Path, predictor: Any, examples: list[dict], words: dict[str, Any]) -> None:
    from posterior_trees.explore.export import frame_content, inline_page
    from posterior_trees.store import write_bytes

    if not examples:
        raise InputError("nothing to save: name the pictures, as in `ptrees explore MODEL a.png`")
    frame = frame_content(predictor.branching, examples[0]["size"], **words)
    write_bytes(file, inline_page(frame | {"examples": examples}).encode())
    print(f"wrote {file}: open it in a browser")


def split_rival(text: str) -> tuple[str, Path]:
    name, sign, file = text.partition("=")
    if not (sign and name and file):
        raise InputError(f"--compare {text}: write NAME=FILE, the file one that Tree.save wrote")
    return name, Path(file)
