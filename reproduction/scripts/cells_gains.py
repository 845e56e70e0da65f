"""What the test windows of cells say, over windows and over their wells: `cells_gains.py DATA`.

Windows of one well say much the same: 95 % intervals that take them for independent are too narrow.
"""

import sys

from posterior_trees import load
from posterior_trees.data import find_groups, load_evaluation
from posterior_trees.evaluation.score import score
from posterior_trees.metrics import summarize
from posterior_trees.models.checkpoint import load_recipe

recipe, predictor = load_recipe("cells"), load("cells", "cpu")
images = load_evaluation(recipe.data, sys.argv[1], "test")
scores = score(predictor, images, batch_size=44, seed=recipe.seed)
wells = find_groups(images.names, recipe.data.split)
gains = scores["psnr"].diff(dim=1)
columns = {"PSNR d=0": scores["psnr"][:, 0], "gain 0→1": gains[:, 0], "gain 1→2": gains[:, 1],
           "NLL d=2": scores["nll"][:, 2]}  # fmt: skip
for name, values in columns.items():
    for what, groups in (("windows", None), ("wells", wells)):
        mean, _, low, high = summarize(values, groups=groups)
        print(f"{name:9} over {what:8} {mean:+.3f} [{low:+.3f}, {high:+.3f}]")
