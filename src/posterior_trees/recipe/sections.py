"""What a recipe can say: its sections, and every key with its default, its choices or its limit.

`recipe.py` reads, checks and writes whatever is declared here. docs/recipes.md explains the keys at
length.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class DataSpec:
    """Which images, how they are split and augmented."""

    name: str = ""  # the set: a folder, a tar file, or the folder of IDX files
    extra: tuple[str, ...] = ()  # more sets, all of whose images train and none is judged
    kind: str = "images"  # "images", "edges", "pairs" or "idx"
    channels: int = 3  # of x
    size: tuple[int, ...] = ()  # height and width to crop and resize to; () = as stored
    inputs: str = ""  # pairs: folder of the measurements
    targets: str = ""  # pairs: folder of the clean images
    input_channels: int = 1  # pairs: channels of y
    shift: tuple[float, ...] = ()  # pairs: rows and columns that move y onto x; () = none
    split: str = "name"  # "name", "well" (name up to the first _) or "files" (IDX)
    split_order: str = "hash"  # draw splits by a hash of names; "sorted": the last ones, as once
    validation: float = 0.05
    test: float = 0.1
    patch: int = 0  # train on random crops of this size
    repeat: int = 1  # how often an epoch takes each image; crops of large ones differ
    augment: tuple[str, ...] = ()  # "flip", "symmetries", "affine", "brightness"


@dataclass(frozen=True)
class MeasurementSpec:
    """How x becomes y; see `posterior_trees.measure`."""

    kind: str = ""  # "inpaint", "colorize", "denoise", "downsample" or "paired"
    rows: tuple[int, ...] = ()  # inpaint: first and last hidden row, inclusive
    columns: tuple[int, ...] = ()
    of: tuple[int, ...] = ()  # inpaint: size of the images the rows and columns are given for
    fill: float = 0.5
    sigma: float = 0.1  # denoise
    factor: int = 4  # downsample
    is_residual: bool = True  # paired


@dataclass(frozen=True)
class TreeSpec:
    branching: int = 3
    depth: int = 2


@dataclass(frozen=True)
class NetworkSpec:
    kind: str = "unet"  # the paper's; or "residual", with attention
    c_init: int = 4
    width: int = 0  # channels of the first level; 0 = c_init · number of leaves
    steps: int = 4  # how often the image is halved; the paper's number
    doublings: int = 4  # … and the first so many times its channels doubled
    decoder: str = "disjoint"  # or "shared"
    multipliers: tuple[int, ...] = (1, 2, 3, 4)  # residual: channels of each level, over `width`
    blocks: int = 2  # residual: blocks of each level on the way down; one more on the way up
    attention: tuple[int, ...] = (2, 3)  # residual: levels, from 0, in which all pixels meet
    padding: str = "reflect"  # or "zeros": how images are padded to sides that can be halved
    head_layers: int = 3
    head_norm: str = "layer"  # or "batch", the paper's
    is_head_detached: bool = False  # True: the head's gradient does not enter the decoder
    dropout: float = 0.0
    head_dropout: float = 0.0


@dataclass(frozen=True)
class LossSpec:
    probability: str = "cross_entropy"  # or "paper"
    beta: float = 0.4  # weight of the cross-entropy, in units of the root's squared error
    epsilon_start: float = 5.0  # epochs of plain MSE
    epsilon_scale: float = 2.0
    epsilon_floor: float = 0.0  # below this the losers' weight does not fall
    seeds: float = 0.0  # epochs, once ε falls, in which leaves learn clusters of the root's misses
    focus: tuple[float, ...] = ()  # top, bottom, left, right of the part that decides; () = all
    is_by_shape: bool = False  # True: it decides in grey, without a level and a slope
    rate: tuple[float, ...] = (0.0,)  # what a surprise costs a child, in root errors; or per level
    is_rate_relative: bool = False  # True: only a surprise beyond the batch's mean costs
    conscience: float = 0.0  # 1: siblings share images equally for the first half; 0 = off

    @property
    def cross_entropy_weight(self) -> float:
        """β; the paper's own loss of probabilities has none."""
        return 0.0 if self.probability == "paper" else self.beta


@dataclass(frozen=True)
class OptimizerSpec:
    name: str = "adam"  # or "sgd"
    lr: float = 1e-3
    head_lr: float = 1e-3  # the paper's is 2e-4; see results/digits
    weight_decay: float = 0.0  # decoupled, on convolution and linear weights
    momentum: float = 0.9  # sgd
    schedule: str = "plateau"  # or "cosine"
    patience: int = 10  # plateau: epochs without progress before lr · 0.1
    min_lr: float = 5e-6
    warmup_steps: int = 0
    clip: float = 0.0  # largest norm of the gradient; 0 = no limit


@dataclass(frozen=True)
class BalancerSpec:
    is_on: bool = False
    start: float = 6.0  # epoch; one after epsilon starts to fall
    ridge: float = 1e-3
    floor: float = 0.1
    is_exact: bool = False
    is_greedy: bool = True  # False: draw from q
    is_windowed: bool = False  # True: greedy as in the paper, which forgets within an epoch
    refresh_every: int = 1


@dataclass(frozen=True)
class TrainingSpec:
    epochs: int = 70
    batch_size: int = 32
    precision: str = "auto"  # "32-true", "bf16-mixed", …: as Lightning Fabric names them
    ema: float = 0.0  # half-life of the weight average in epochs; 0 = off
    calibrate: bool = False  # fit the probabilities to the validation images at the end
    compile: bool = False  # fuse the network's operations; pays on CUDA after half a minute
    capture: bool = True  # replay the whole step as one CUDA graph, where there is CUDA
    save_seconds: float = 60.0  # how often the state is saved
    picture_every: int = 10  # epochs between pictures of trees; 0 = none
    evaluation_batch: int = 256


CHOICES = {
    "data.kind": ("images", "edges", "pairs", "idx"),
    "data.split": ("name", "well", "files"),
    "data.split_order": ("hash", "sorted"),
    "data.channels": (1, 3),
    "measurement.kind": ("inpaint", "colorize", "denoise", "downsample", "paired"),
    "network.kind": ("unet", "residual"),
    "network.decoder": ("disjoint", "shared"),
    "network.padding": ("reflect", "zeros"),
    "network.head_layers": (3, 4),
    "network.head_norm": ("layer", "batch"),
    "loss.probability": ("cross_entropy", "paper"),
    "optimizer.name": ("adam", "sgd"),
    "optimizer.schedule": ("plateau", "cosine"),
}
"""Keys that are one of a few values."""

AT_LEAST = {
    "tree.branching": 2,
    "tree.depth": 0,
    "network.c_init": 1,
    "network.width": 0,
    "network.steps": 1,
    "network.doublings": 0,
    "network.blocks": 1,
    "optimizer.patience": 0,
    "optimizer.clip": 0.0,
    "training.ema": 0.0,
    "training.save_seconds": 0.0,
    "training.picture_every": 0,
    "training.epochs": 1,
    "training.batch_size": 1,
    "training.evaluation_batch": 1,
    "loss.beta": 0.0,
    "loss.epsilon_start": 0.0,
    "loss.epsilon_floor": 0.0,
    "loss.seeds": 0.0,
    "loss.conscience": 0.0,
    "data.patch": 0,
    "data.repeat": 1,
    "data.input_channels": 1,
    "network.dropout": 0.0,
    "network.head_dropout": 0.0,
    "optimizer.weight_decay": 0.0,
    "optimizer.min_lr": 0.0,
    "optimizer.warmup_steps": 0,
    "measurement.factor": 2,
}
"""Keys that have a least value."""

ABOVE_ZERO = ("optimizer.lr", "optimizer.head_lr", "measurement.sigma")
"""With 0 nothing would be learned, or measured."""

AT_MOST = {
    "data.size": 8192,
    "data.patch": 8192,
    "data.repeat": 1_000_000,
    "data.input_channels": 1024,
    "measurement.of": 8192,
    "measurement.factor": 1024,
    "tree.branching": 4096,
    "tree.depth": 12,
    "network.c_init": 4096,
    "network.width": 65_536,
    "network.steps": 12,
    "network.doublings": 12,
    "network.multipliers": 64,
    "network.blocks": 64,
    "network.dropout": 0.99,
    "network.head_dropout": 0.99,
    "training.batch_size": 1_000_000,
    "training.evaluation_batch": 1_000_000,
    "training.epochs": 1_000_000,
}
"""Keys, and entries of keys, that have a largest value: nothing fits into memory, or ends, long
before. A recipe may come with somebody else's model."""
MOST_LEAVES, MOST_ENTRIES = 4096, 16
"""Leaves of a tree, and entries of a list."""
