"""How large χ² is for exact samples, whose ranks along several directions are not independent.

python reproduction/scripts/rank_dependence.py: Gaussian posteriors of 60 numbers with standard
deviations i^-p, 100 images, 99 exact samples of each, four random directions and four main axes,
as in a comparison; 300 trials of each p.
"""

import torch
from posterior_trees_paper.baselines.calibration import chi_square, choose_directions, ranks

IMAGES, SAMPLES, TRIALS = 100, 99, 300

for power in (0.0, 0.5, 1.0, 2.0):
    generator = torch.Generator().manual_seed(0)
    scale = torch.arange(1, 61) ** -power
    found = []
    for _ in range(TRIALS):
        draw = [torch.randn(IMAGES, n, 60, generator=generator) * scale for n in (SAMPLES, 1, 9)]
        samples, truth, spreads = draw
        directions = choose_directions((60,), IMAGES, spreads, seed=0)
        found.append(chi_square(ranks(samples, truth[:, 0], directions, generator)))
    values = torch.tensor(found)
    shares = [(values > limit).double().mean().item() for limit in (21.7, 25.0)]
    print(f"p = {power}: mean {values.mean().item():.1f}, above 21.7 {shares[0]:.1%}, above 25 "
          f"{shares[1]:.1%}")  # fmt: skip
