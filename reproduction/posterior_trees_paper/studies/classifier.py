r"""A small digit reader, trained by us: which digit does a leaf show?

Three 3×3 convolutions (24, 48 and 96 maps, each with GroupNorm, ReLU and 2×2 max pooling), the mean
over what is left of the image, and a linear layer: 54 thousand weights, stored in 16 bits.

A leaf is the mean of many digits and softer than any of them. So half of the training images are
made soft: a blend $w x_i + (1 - w) x_j$ of two digits of one class, $w \sim U(0, 1)$. All are
turned, scaled and shifted a little (`data/augment.py`).

    python -m posterior_trees_paper.studies.classifier --data DIR --out FILE

reads `DIR/mnist` (images and labels), trains on the 60,000, and prints and stores the accuracy on
the 10,000 test digits.
"""

import argparse
from collections.abc import Callable
from os import PathLike
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from posterior_trees import store
from posterior_trees.data import ImageSet, find_folder, read_idx
from posterior_trees.data.augment import augment
from posterior_trees.data.idx import find_idx, read_idx_images
from posterior_trees.errors import DataError, InputError

CLASSES = 10
EPOCHS, BATCH, LEARNING_RATE = 8, 128, 4e-3


class DigitReader(nn.Module):
    """Images of 28×28 pixels in [0, 1] → logits of the ten digits."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in ((1, 24), (24, 48), (48, 96)):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(8, after)]
            layers += [nn.ReLU(), nn.MaxPool2d(2)]
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.to_logits = nn.Linear(96, CLASSES)

    def forward(self, x: Float[Tensor, "b 1 h w"]) -> Float[Tensor, "b 10"]:
        return self.to_logits(self.layers(2 * x - 1))

    @torch.inference_mode()
    def read(self, x: Float[Tensor, "*b 1 h w"], batch: int = 4096) -> Int[Tensor, "*b"]:
        """The digit that each image shows."""
        flat = x.reshape(-1, *x.shape[-3:])
        digits = torch.cat([self(part).argmax(dim=1) for part in flat.split(batch)])
        return digits.reshape(x.shape[:-3])


def load_labelled(folder: str | PathLike[str], part: str) -> tuple[ImageSet, Int[Tensor, "n"]]:
    """The digits of `folder/mnist` and their labels; `part` is "train" or "t10k"."""
    place = find_folder(folder) / "mnist"
    file = find_idx(place, f"{part}-labels", 1)
    if file is None:
        raise DataError(
            f"no {part}-labels-idx1-ubyte.gz in {place}: the classifier needs the original label "
            "files beside the images"
        )
    images = ImageSet(torch.from_numpy(read_idx_images(place, part)))
    labels = torch.from_numpy(read_idx(file)).long()
    if labels.shape != (len(images),):
        raise DataError(f"{file} has {labels.numel()} labels for {len(images)} images")
    return images, labels


def train(
    images: ImageSet,
    labels: Int[Tensor, "n"],
    *,
    epochs: int = EPOCHS,
    seed: int = 0,
    say: Callable[[str], object] = print,
) -> DigitReader:
    """Adam with a learning rate that falls to zero; on the device of the images."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    network, labels = DigitReader().to(images.device), labels.to(images.device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
    steps = epochs * (len(images) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps)
    network.train()
    for epoch in range(epochs):
        order = torch.randperm(len(images), generator=generator).to(images.device)
        for chosen in order[: len(order) // BATCH * BATCH].split(BATCH):
            x = soften(images, chosen, labels, generator)
            x, _ = augment(x, names=("affine",), generator=generator)
            loss = F.cross_entropy(network(x), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        say(f"epoch {epoch + 1} of {epochs}: loss {loss.item():.4f}")
    return network.eval()


def soften(
    images: ImageSet, chosen: Int[Tensor, "b"], labels: Int[Tensor, "n"], generator: torch.Generator
) -> Float[Tensor, "b c h w"]:
    """The chosen digits, every second one blended with another of its class."""
    draws = torch.rand(2, len(chosen), generator=generator).to(chosen.device)
    counts = labels.bincount(minlength=CLASSES)
    first, wanted = counts.cumsum(0) - counts, labels[chosen]
    place = first[wanted] + (draws[0] * counts[wanted]).long()
    partners = labels.argsort(stable=True)[place]
    share = draws[1].reshape(-1, 1, 1, 1).clone()
    share[::2] = 1.0
    return share * images.batch(chosen)[0] + (1 - share) * images.batch(partners)[0]


def accuracy(network: DigitReader, images: ImageSet, labels: Int[Tensor, "n"]) -> float:
    x, _ = images.batch(torch.arange(len(images)))
    return (network.read(x).cpu() == labels.cpu()).double().mean().item()


def save_reader(file: str | PathLike[str], network: DigitReader, facts: dict) -> None:
    weights = {name: weight.half() for name, weight in network.state_dict().items()}
    store.write(file, weights, {"classifier": 1, **facts})


def load_reader(file: str | PathLike[str], device: str | torch.device = "cpu") -> DigitReader:
    """A stored digit reader, ready to use."""
    weights, facts = store.read(file)
    if "classifier" not in facts:
        raise InputError(
            f"{file} is not a digit classifier; make one with python -m "
            "posterior_trees_paper.studies.classifier --data DIR --out FILE"
        )
    network = DigitReader()
    network.load_state_dict({name: weight.float() for name, weight in weights.items()})
    return network.to(device).eval().requires_grad_(False)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train the digit classifier of the studies.")
    parser.add_argument("--data", type=Path, required=True, help="folder with mnist/ and labels")
    parser.add_argument("--out", type=Path, required=True, help="safetensors file to write")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args(argv)
    images, labels = load_labelled(arguments.data, "train")
    network = train(images.to(arguments.device), labels, epochs=arguments.epochs)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    save_reader(arguments.out, network, {})
    stored = load_reader(arguments.out)  # judged as it is stored, in 16 bits
    share = accuracy(stored, *load_labelled(arguments.data, "t10k"))
    save_reader(arguments.out, network, {"test_accuracy": share, "epochs": arguments.epochs})
    print(f"{arguments.out}: {share:.2%} of the test digits are read correctly")


if __name__ == "__main__":
    main()
