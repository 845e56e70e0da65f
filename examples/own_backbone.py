r"""Any backbone, your own loop: the colours that a grey picture may have had.

    python examples/own_backbone.py --out runs/own_backbone

Disks are painted in one of four colours whose channels have the same mean, and we see the grey
picture only: nothing in it tells the colour. The best single answer is a mixture nobody painted. A
tree with two children per node and two levels finds the four colours, groups them into warm and
cool, and says how probable each is.

The network is ten lines of plain PyTorch. `wrap` adds what makes it a tree: a 1×1 convolution to
the leaves, a small head for their probabilities, and the agreement of every node with $y$.

The balancer earns its keep here: set `balancer.active = False` and some leaf dies, because its
sibling is nearer to both of their colours before they have parted.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

from posterior_trees import (
    Colorize,
    LeafBalancer,
    TreePredictor,
    entropy,
    epsilon_at,
    nll,
    probability_loss,
    psnr,
    tree_loss,
    wrap,
)
from posterior_trees.explore import save_page
from posterior_trees.figure import save_figure

SIZE, BATCH = 16, 32
COLOURS = torch.tensor([[1.0, 0.25, 0.25], [0.75, 0.75, 0.0], [0.0, 0.5, 1.0], [0.25, 1.0, 0.25]])
SHARES = torch.tensor([0.4, 0.2, 0.3, 0.1])
NAMES = ("red", "yellow", "blue", "green")


def paint(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Disks of random place, size and colour, `(n, 3, h, w)`, and the numbers of their colours."""
    colour = SHARES.multinomial(n, replacement=True, generator=generator)
    place = 4 + (SIZE - 8) * torch.rand(n, 2, 1, 1, generator=generator)
    radius = 2 + 2 * torch.rand(n, 1, 1, generator=generator)
    rows, columns = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    distance = ((rows - place[:, 0]).square() + (columns - place[:, 1]).square()).sqrt()
    disk = (radius - distance + 0.5).clamp(0, 1)
    return disk[:, None] * COLOURS[colour][:, :, None, None], colour


def make_backbone(features: int) -> nn.Module:
    """Your network goes here: any module from `(b, 1, h, w)` to `(b, features, h, w)`."""
    layers: list[nn.Module] = []
    for before, dilation in ((1, 1), (features, 2), (features, 4)):
        layers += [nn.Conv2d(before, features, 3, padding=dilation, dilation=dilation), nn.SiLU()]
    return nn.Sequential(*layers)


def train(net: TreePredictor, x: Tensor, steps: int, generator: torch.Generator) -> None:
    """The whole method: annealed tree loss, probability loss, balanced batches."""
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    balancer = LeafBalancer(net.num_leaves, len(x))
    step = 0
    while step < steps:
        for idx in balancer.batches(BATCH, generator):
            eps = epsilon_at(step, start=0, scale=steps / 10)
            tree = net(net.measure(x[idx]))
            beta = 0.4 * (tree.root - x[idx]).square().mean().detach()
            loss = tree_loss(tree, x[idx], eps) + beta * probability_loss(tree, x[idx])
            (balancer.weights(idx) * loss).mean().backward()
            opt.step()
            opt.zero_grad()
            balancer.update(idx, tree.descend(x[idx])[:, -1])
            step += 1
            if step == steps:
                break


def judge(net: TreePredictor, x: Tensor, colour: Tensor) -> None:
    """Print what each leaf stands for, and the numbers of Sec. 4.1 on fresh disks."""
    tree = net(net.measure(x))
    leaf = tree.descend(x)[:, -1]
    print("leaf  probability  frequency  stands for")
    for number in range(net.num_leaves):
        inside = colour[leaf == number]
        painted = NAMES[int(inside.mode().values)] if len(inside) else "nothing"
        share, prob = len(inside) / len(x), tree.probs[-1][:, number].mean()
        print(f"{number:4d}  {prob:11.2f}  {share:9.2f}  {painted}")
    scores = {"PSNR": psnr(tree, x), "NLL": nll(tree, x), "entropy": entropy(tree)}
    for name, values in scores.items():
        depths = "  ".join(f"{value:6.2f}" for value in values.mean(dim=0))
        print(f"{name:8s} at depth 0, 1, 2:  {depths}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a tree around your own backbone.")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=Path("runs/own_backbone"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)

    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    net = wrap(
        make_backbone(features=24),
        features=24,
        channels=3,
        branching=2,
        depth=2,
        measurement=Colorize(),
    )
    x, _ = paint(1024, generator)
    train(net, x, arguments.steps, generator)

    net.eval().requires_grad_(False)
    x, colour = paint(512, generator)
    judge(net, x, colour)
    x = x[:4]
    y = net.measure(x)
    save_figure(net(y), arguments.out / "trees.png", y=y, x=x)
    save_page(arguments.out / "index.html", net(y), inputs=y, truths=x, title="Disks")
    print(f"open {arguments.out / 'index.html'}")


if __name__ == "__main__":
    main()
