"""How an image becomes a measurement, and what the measurement leaves open."""

from posterior_trees.measure.base import Measurement
from posterior_trees.measure.kinds import Colorize, Denoise, Downsample, Free, Inpaint, Paired
