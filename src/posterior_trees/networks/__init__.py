"""Networks: from what was measured to the leaves of a tree and their log-probabilities."""

from posterior_trees.networks.backbone import Backbone
from posterior_trees.networks.head import Leaves, ProbabilityHead
from posterior_trees.networks.node import NodeNetwork
from posterior_trees.networks.residual import ResidualUNet
from posterior_trees.networks.unet import UNet
