"""Posterior trees from scratch: the whole method in one file, with nothing but PyTorch.

A clean point x comes from a mixture of four Gaussians and is seen as y = x + noise. Many x explain
one y. A denoiser trained with the squared error predicts their average, which may be a place where
no x ever is. We predict a tree instead: the average, its two halves, their halves, and how likely
each is. Training needs one x for each y, nothing more.

    python examples/posterior_tree_from_scratch.py              (less than a minute)
    python examples/posterior_tree_from_scratch.py --steps 300  (a quick look)
"""

import argparse
import math
from itertools import pairwise

import torch
from torch import Tensor, nn

# 1. A world: four modes, x ~ N(mode, I), y = x + 2n. --------------------------------------------
MODES = torch.tensor([[-6.0, 2.5], [1.0, 2.5], [-2.5, 6.0], [-2.5, -1.5]])
SIGMA = 2.0


def sample_pairs(count: int) -> tuple[Tensor, Tensor]:
    x = MODES[torch.randint(len(MODES), (count,))] + torch.randn(count, 2)
    return x, x + SIGMA * torch.randn(count, 2)


def posterior_mean(y: Tensor) -> Tensor:
    """Σ_l p(l|y) E[x|y,l]: known in this world, and only used to check the tree's root."""
    gaps = y[:, None] - MODES
    weights = (-gaps.square().sum(2) / (2 * (1 + SIGMA**2))).softmax(1)
    return (weights[:, :, None] * (MODES + gaps / (1 + SIGMA**2))).sum(1)


# 2. A network: y -> four leaves and their log-probabilities. ------------------------------------
def mlp(width_in: int, width_out: int) -> nn.Sequential:
    widths = [width_in, 256, 256, 256, 256, width_out]
    layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.SiLU())]
    return nn.Sequential(*layers[:-1])


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.leaves, self.logits = mlp(2, 4 * 2), mlp(2, 4)

    def forward(self, y: Tensor) -> tuple[Tensor, Tensor]:
        z = (y - MODES.mean(0)) / 2
        leaves = MODES.mean(0) + 4 * self.leaves(z).reshape(-1, 4, 2)
        return leaves, self.logits(z).log_softmax(1)


# 3. Grow: parents are the average of their children, weighted by probability. --------------------
def grow(leaves: Tensor, log_probs: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Levels of the tree, root first: nodes (b, n, 2) and their log-probabilities (b, n)."""
    levels = [(leaves, log_probs)]
    while levels[0][0].shape[1] > 1:
        nodes, logs = levels[0]
        pairs, pair_logs = nodes.unflatten(1, (-1, 2)), logs.unflatten(1, (-1, 2))
        parents = (pair_logs.softmax(2)[..., None] * pairs).sum(2)
        levels.insert(0, (parents, pair_logs.logsumexp(2)))
    return levels


# 4. The loss: x walks down from the root to the nearest child, and each node it meets pays. ------
def tree_loss(tree: list[tuple[Tensor, Tensor]], x: Tensor, epsilon: float) -> Tensor:
    """Squared errors along the path; losers pay epsilon of theirs. The NLL makes p honest."""
    errors = [(nodes - x[:, None]).square().mean(2) for nodes, _ in tree]
    loss, weight, path = errors[0][:, 0], torch.ones(len(x), 1), torch.ones(len(x), 1)
    for error in errors[1:]:
        is_nearest = nn.functional.one_hot(error.unflatten(1, (-1, 2)).argmin(2), 2).float()
        weight = (weight[..., None] * is_nearest.clamp_min(epsilon)).flatten(1)
        path = (path[..., None] * is_nearest).flatten(1)
        loss = loss + (weight * error).sum(1)
    nll = -(path * tree[-1][1]).sum(1)
    return (loss + 0.4 * errors[0].detach().mean() * nll).mean()


# 5. Train: losers pay everything at first, so that all leaves start near the mean; then nothing. -
def train(steps: int) -> Network:
    network = Network()
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, total_iters=steps)
    for step in range(steps):
        x, y = sample_pairs(256)
        epsilon = math.exp(-max(step / steps - 0.02, 0) / 0.01)
        loss = tree_loss(grow(*network(y)), x, epsilon)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if (step + 1) % 200 == 0:
            print(f"step {step + 1:5d} of {steps}   loss {loss.item():.3f}")
    return network


# 6. Show: is the root the posterior mean, and what does one tree say? ----------------------------
def show(tree: list[tuple[Tensor, Tensor]], level: int = 0, node: int = 0) -> None:
    nodes, log_probs = tree[level]
    u, v = nodes[0, node].tolist()
    print(f"{'        ' * level}({u:.2f}, {v:.2f})  p = {log_probs[0, node].exp():.2f}")
    for child in (2 * node, 2 * node + 1) if level + 1 < len(tree) else ():
        show(tree, level + 1, child)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Posterior trees of a 2-D mixture, from scratch")
    parser.add_argument("--steps", type=int, default=2000, help="training steps of 256 pairs")
    torch.manual_seed(0)
    torch.set_num_threads(1)  # matrices this small gain nothing from a second core
    trained = train(parser.parse_args().steps)
    _, y = sample_pairs(1000)
    rmse = (grow(*trained(y))[0][0][:, 0] - posterior_mean(y)).square().mean().sqrt()
    print(f"root against the analytic posterior mean: RMSE {rmse:.3f}")
    y = torch.tensor([[-2.0, 4.5]])
    u, v = posterior_mean(y)[0].tolist()
    print(f"tree of y = (-2.00, 4.50), posterior mean ({u:.2f}, {v:.2f}):")
    show(grow(*trained(y)))
