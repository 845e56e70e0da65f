r"""Trees as one self-contained web page, the explorer: opened from disk, or the output of a cell
of a notebook (`show(tree, inputs=y)`, or just `tree` as its last line), without any network.

The page is `static/page.html` with the style sheet, the script and the trees put inside it. The
script is the modules of `static/` one after the other, in the order of their imports, with the
import and export words taken away; the server sends the same files as they are. The trees are JSON
in a script tag (`<script type="application/json" id="trees">`), in the form of `content`.

Whatever the user wrote (names, title, model card) goes through the JSON, where `<` is `\u003c`, and
the script only ever puts it on the page as text. In a notebook the page lives in a frame of its own
(`srcdoc`), so that it and the notebook leave each other alone, and is saved with the notebook.
"""

import html
import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from os import PathLike
from pathlib import Path
from typing import Any

from posterior_trees.explore.content import SCHEMA, describe_trees
from posterior_trees.store import write_bytes
from posterior_trees.tree import Tree

MODULES = ("state.js", "pixels.js", "promise.js", "answers.js", "treeview.js", "viewer.js",
           "ask.js", "files.js", "share.js", "main.js")  # fmt: skip
"""The scripts of a saved page, each after those it imports."""
SERVED = (*MODULES, "eyes.js", "grow.js", "paper.js", "own.js", "style.css")
"""What the server sends: also the part that asks it for trees of new pictures."""
HEIGHT = 720
SHOWN = 24
"""How many trees of a batch a bare `tree` shows; `show` shows all that it is given."""
INLINE_POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
)
SERVED_POLICY = (
    "default-src 'none'; img-src data: blob:; style-src 'self'; script-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'"
)


def page(
    trees: Tree, *, title: str = "Posterior trees", model_card: Mapping[str, object] | None = None,
    **options: Any,
) -> str:  # fmt: skip
    """The explorer of these trees as one HTML text; the other options are those of
    `describe_trees`. `model_card` may hold any words for the footer, such as `name`, `citation` and
    `attribution`."""
    examples = describe_trees(trees, **options)
    content = frame_content(trees.branching, trees.shape[1:], title, model_card)
    return inline_page(content | {"examples": examples})


def save_page(file: str | PathLike[str], trees: Tree, **options: Any) -> None:
    """Write `page` to a file; the options are those of `page`."""
    write_bytes(Path(file), page(trees, **options).encode())


def frame_content(
    branching: Sequence[int], size: Sequence[int], title: str,
    model_card: Mapping[str, object] | None = None,
) -> dict:  # fmt: skip
    """What a page says before any example."""
    model = {str(key): str(value) for key, value in (model_card or {}).items()}
    return {"schema": SCHEMA, "title": title, "branching": list(branching), "size": list(size),
            "model": model, "examples": []}  # fmt: skip


def inline_page(content: dict) -> str:
    """The page with style, script and trees inside."""
    # One script in which all names are in reach.
    script = "\n".join(map(static, MODULES))
    script = re.sub(r"^import\b[^;]*;\n|^export ", "", script, flags=re.MULTILINE)
    style, tag = static("style.css"), '<script type="module"'
    parts = {
        "SERVED-POLICY": INLINE_POLICY,
        '<link rel="stylesheet" href="static/style.css">': f"<style>\n{style}</style>",
        f'{tag} src="static/main.js"></script>': f"{tag}>\n{script}</script>",
        f'{tag} src="static/own.js"></script>\n': "",
    }
    return _fill(content, parts)


def served_page(content: dict) -> str:
    """The page that refers to its style and scripts, for the server."""
    return _fill(content, {"SERVED-POLICY": SERVED_POLICY})


def static(file: str) -> str:
    folder = resources.files("posterior_trees.explore") / "static"
    return (folder / file).read_text(encoding="utf-8")


def _fill(content: dict, parts: dict[str, str]) -> str:
    """Put title, trees and the other parts in their places, all in one pass, so that nothing the
    user wrote is taken for a place."""
    data = json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")
    tag = '<script type="application/json" id="trees">'
    parts = parts | {
        "<title>Posterior trees</title>": f"<title>{html.escape(content['title'])}</title>",
        f"{tag}</script>": f"{tag}{data}</script>",
    }
    places = "|".join(map(re.escape, parts))
    return re.sub(places, lambda match: parts[match[0]], static("page.html"))


class Widget:
    """A page that a notebook displays."""

    def __init__(self, text: str, height: int) -> None:
        self.text, self.height = text, height

    def _repr_html_(self) -> str:
        return (
            f'<iframe srcdoc="{html.escape(self.text)}" title="Posterior tree explorer" '
            f'sandbox="allow-scripts allow-downloads allow-modals" '
            f'style="width:100%;height:{self.height}px;border:1px solid #8884;border-radius:8px">'
            "</iframe>"
        )


def show(tree: Tree, *, height: int = HEIGHT, **options) -> Widget:
    """The explorer of a `tree` for a notebook, `height` pixels high; the options are those of
    `explore.page`.

    >>> tree = grow(torch.rand(1, 9, 1, 8, 8), torch.zeros(1, 9).log_softmax(dim=1), branching=3)
    >>> "iframe" in show(tree, title="Nine answers")._repr_html_()
    True
    """
    return Widget(page(tree, **options), height)


def repr_html(tree: Tree) -> str | None:
    """What a bare `tree` in a cell shows: its first trees, or nothing special for other shapes."""
    is_image = len(tree.shape) == 3 and tree.shape[0] in (1, 3)
    return show(tree[:SHOWN])._repr_html_() if is_image and len(tree) else None
