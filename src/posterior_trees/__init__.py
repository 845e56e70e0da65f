"""Posterior Trees: a tree of answers for image restoration, in one forward pass.

The public names lie along the data flow, measurement → network → predictor → tree → loss / metrics
/ explorer; the map of the whole package is in CONTRIBUTING.md.

A name is imported when it is first asked for: `ptrees --help` need not wait for torch, and whoever
stops a command while torch is loading meets the command line's own answer.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from posterior_trees.balance import LeafBalancer
    from posterior_trees.clustering import hierarchical_kmeans
    from posterior_trees.errors import PosteriorTreesError
    from posterior_trees.explore import show
    from posterior_trees.guarantee.certify import calibrate
    from posterior_trees.loss import epsilon_at, probability_loss, tree_loss
    from posterior_trees.measure import Colorize, Denoise, Downsample, Inpaint, Measurement, Paired
    from posterior_trees.metrics import entropy, nll, psnr
    from posterior_trees.models.checkpoint import load
    from posterior_trees.networks import UNet
    from posterior_trees.predictor import Predictor, TreePredictor, wrap
    from posterior_trees.tree import Node, Tree, grow

__version__ = "0.1.0"
_HOMES = {
    "balance": ("LeafBalancer",),
    "clustering": ("hierarchical_kmeans",),
    "errors": ("PosteriorTreesError",),
    "explore": ("show",),
    "guarantee.certify": ("calibrate",),
    "loss": ("epsilon_at", "probability_loss", "tree_loss"),
    "measure": ("Colorize", "Denoise", "Downsample", "Inpaint", "Measurement", "Paired"),
    "metrics": ("entropy", "nll", "psnr"),
    "models.checkpoint": ("load",),
    "networks": ("UNet",),
    "predictor": ("Predictor", "TreePredictor", "wrap"),
    "tree": ("Node", "Tree", "grow"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    """A public name, or a module, as if all had been imported."""
    if name in _HOME:
        found = globals()[name] = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
        return found
    try:
        return import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{name}":
            raise
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return sorted({*__all__, *(home for home in _HOMES if "." not in home), "__version__"})
