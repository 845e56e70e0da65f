r"""Whether a picture is at the magnification that a model was trained at, by what its tree shows.

A model of pairs, of a missing stain say, knows things at one size. In a picture of another
magnification it still finds some, and their size gives it away: it lies between that of the picture
and that of the training. So let $m$ be the median number of pixels of an image's bright regions
(`imaging/regions.py`), if it has at least ten. A model keeps the 5, 50 and 95 % quantiles of $m$
over its clean training images, and the root of a picture's tree is doubted if its $m$ is below the
first or above the last by a factor of more than 1.25. In trees of one picture at several scales $s$
the regions grow more slowly than its things do,

$$ m \propto s^g, \qquad 1 < g < 2, $$

so that the scale which is advised, $(m_{0.5} / m)^{1/g}$ times the present one, takes $g = 1.5$
(`GROWTH`). Of 14 training fields the median $g$ was 1.2 at half the size, 1.3 to 1.7 at 60 to 170 %
and 1.4 at twice the size (results/cells_actin_to_dna).

In the cells of BBBC022 the quantiles are 161, 180 and 205 pixels. Of 22 test fields none was
doubted as it is, 9 at 80 % of their size, 21 at 70 %, 15 at 125 % and all at 140 %; see
`docs/cells.md`.
"""

from posterior_trees.imaging.regions import median_region
from posterior_trees.imaging.size import SCALES
from posterior_trees.predictor import Predictor
from posterior_trees.tree import Tree

SLACK = 1.25
GROWTH = 1.5


def describe_magnification(tree: Tree, model: Predictor, scale: float | int = 1.0) -> str:
    """Why the picture of a tree, taken at `scale` (`size.py`), may be at another magnification than
    the model's training images, and what to try; empty if it fits or nobody knows."""
    if not (usual := model.about.get("region_pixels")):
        return ""
    low, middle, high = usual
    median = median_region(tree.root[0, 0])
    if median is None or low / SLACK <= median <= high * SLACK:
        return ""
    task = f"the task {model.name!r}" if model.name else "this model"
    least, most = SCALES
    advised = min(max(scale * (middle / median) ** (1 / GROWTH), least), most)
    return (
        f"the picture may be at another magnification than {task} was trained at: bright regions "
        f"of the root, the predicted mean, have {median:.0f} pixels (the median), in training "
        f"images they have {low:.0f} to {high:.0f}, and {low / SLACK:.0f} to {high * SLACK:.0f} "
        f"pass. Try {advised:.3g} of its size (--scale {advised:.3g}), and once more if this is "
        "then said again"
    )
