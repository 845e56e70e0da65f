"""Posterior Trees: a tree of answers for image restoration, in one forward pass.

The public names, in the order of the data flow:
measurement → network → predictor → tree → loss / metrics / explorer.
"""

from posterior_trees.balance import LeafBalancer
from posterior_trees.baselines import hierarchical_kmeans
from posterior_trees.checkpoint import load
from posterior_trees.explore import show
from posterior_trees.loss import epsilon_at, probability_loss, tree_loss
from posterior_trees.measure import Colorize, Denoise, Downsample, Inpaint, Measurement, Paired
from posterior_trees.metrics import entropy, nll, psnr
from posterior_trees.networks import UNet
from posterior_trees.predictor import TreePredictor, wrap
from posterior_trees.tree import Node, Tree, grow

__version__ = "0.1.0"
__all__ = [
    "Colorize",
    "Denoise",
    "Downsample",
    "Inpaint",
    "LeafBalancer",
    "Measurement",
    "Node",
    "Paired",
    "Tree",
    "TreePredictor",
    "UNet",
    "entropy",
    "epsilon_at",
    "grow",
    "hierarchical_kmeans",
    "load",
    "nll",
    "probability_loss",
    "psnr",
    "show",
    "tree_loss",
    "wrap",
]
