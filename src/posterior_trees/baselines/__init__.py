"""What the paper compares with: samples of a posterior, clustered into a tree.

Samplers share one form, `sampler(denoise, measurement, y, n, *, …, generator=None)`, and give
`(b, n, *shape)`; `process.py` says what a denoiser is. `clustering.py` makes a tree of any samples.
"""

from posterior_trees.baselines.ddnm import ddnm
from posterior_trees.baselines.ddrm import ddrm
from posterior_trees.baselines.diffpir import diffpir
from posterior_trees.baselines.dps import dps
from posterior_trees.baselines.process import Denoiser, cosine_alpha_bar, linear_alpha_bar
from posterior_trees.baselines.repaint import repaint
from posterior_trees.baselines.reverse import conditional, denoising, unconditional
from posterior_trees.clustering import hierarchical_kmeans
