"""Trees in notebooks: the explorer as the output of a cell.

    from posterior_trees import show
    show(tree, inputs=y)      # or just `tree` as a cell's last line

The page lives in a frame of its own (`srcdoc`), so that it and the notebook leave each other alone;
it is saved with the notebook and needs neither a server nor the network.
"""

import html

from posterior_trees.explore.export import page
from posterior_trees.tree import Tree

HEIGHT = 720
SHOWN = 24
"""How many trees of a batch a bare `tree` shows; `show` shows all that it is given."""


class Widget:
    """A page that a notebook displays."""

    def __init__(self, text: str, height: int = HEIGHT) -> None:
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
