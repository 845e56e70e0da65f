"""What a recipe can say: its sections, and every key with its type, limits, default and meaning.

Nothing of it is said twice: `section.py` checks by these declarations, `recipe.py` reads and writes
by them, and docs/recipes.md is made of them (`page.py`). A recipe may come with somebody else's
model, so numbers have largest values, too: nothing fits into memory, or ends, long before.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from posterior_trees.recipe.section import Section

LARGEST = 2**63 - 1
MANY = Meta(max_length=16)
Share = Annotated[float, Meta(ge=0, le=0.99)]
Positive = Annotated[float, Meta(gt=0)]
Least0 = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0, le=LARGEST)]
Whole = Annotated[int, Meta(ge=-(2**63), le=LARGEST)]
Side = Annotated[int, Meta(ge=-(2**63), le=8192)]


@dataclass(frozen=True)
class DataSpec(Section):
    """which images

    More in [data.md](data.md).
    """

    name: Annotated[
        str, Meta(description="the set: `DIR/name/` or `DIR/name.tar`, with `DIR` from `--data`")
    ] = ""
    extra: Annotated[
        tuple[str, ...],
        MANY,
        Meta(
            description="more sets of images, cut and resized alike: all of them train, none is "
            "judged"
        ),
    ] = ()
    kind: Annotated[
        Literal["images", "edges", "pairs", "idx"],
        Meta(
            description="`images` (y is made from x), `edges` (y is the edge map of x), `pairs` "
            "(two folders) or `idx` (MNIST's files)"
        ),
    ] = "images"
    channels: Annotated[
        Literal[1, 3], Meta(description="channels of x, 1 or 3; files are converted")
    ] = 3
    size: Annotated[
        tuple[Side, ...],
        MANY,
        Meta(description="height and width to crop and resize to; empty: as stored"),
    ] = ()
    inputs: Annotated[str, Meta(description="pairs: folder of the measurements y")] = ""
    targets: Annotated[str, Meta(description="pairs: folder of the clean images x")] = ""
    input_channels: Annotated[
        int, Meta(ge=1, le=1024, description="pairs: channels of y, 1 or 3")
    ] = 1
    shift: Annotated[
        tuple[float, ...],
        MANY,
        Meta(
            description="pairs: rows and columns by which y is moved to lie on x; `ptrees "
            "evaluate` says how far x lies from where a root expects it. Empty: none"
        ),
    ] = ()
    split: Annotated[
        Literal["name", "well", "files"],
        Meta(description="`name`, `well` (the name up to its first `_`) or `files` (IDX)"),
    ] = "name"
    split_order: Annotated[
        Literal["hash", "sorted"],
        Meta(
            description="draw files or wells by a hash of their names, so that new ones move no "
            "others; `sorted`: the last names, as older models were split"
        ),
    ] = "hash"
    validation: Annotated[
        float,
        Meta(
            description="share of the images that chooses the best weights; 0: train on all, keep "
            "the last"
        ),
    ] = 0.05
    test: Annotated[float, Meta(description="share of the images that training never sees")] = 0.1
    patch: Annotated[
        int,
        Meta(
            ge=0,
            le=8192,
            description="train on random square windows of this many pixels, judge on a fixed "
            "grid of them; 0: whole images",
        ),
    ] = 0
    repeat: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000,
            description="how often an epoch takes each image: with `patch`, windows of large "
            "images",
        ),
    ] = 1
    augment: Annotated[
        tuple[str, ...],
        MANY,
        Meta(description="any of `flip`, `symmetries`, `affine`, `brightness`"),
    ] = ()


@dataclass(frozen=True)
class MeasurementSpec(Section):
    """what is known of x"""

    kind: Annotated[
        Literal["", "inpaint", "colorize", "denoise", "downsample", "paired"],
        Meta(description="`inpaint`, `colorize`, `denoise`, `downsample` or `paired`"),
    ] = ""
    rows: Annotated[
        tuple[Whole, ...], MANY, Meta(description="inpaint: first and last hidden row, inclusive")
    ] = ()
    columns: Annotated[
        tuple[Whole, ...],
        MANY,
        Meta(description="inpaint: first and last hidden column, inclusive"),
    ] = ()
    of: Annotated[
        tuple[Side, ...],
        MANY,
        Meta(
            description="inpaint: height and width of the images that `rows` and `columns` are "
            "given for"
        ),
    ] = ()
    fill: Annotated[float, Meta(description="inpaint: what the network sees in the hole")] = 0.5
    sigma: Annotated[
        Positive,
        Meta(description="denoise: standard deviation of the noise, for images in [0, 1]"),
    ] = 0.1
    factor: Annotated[
        int, Meta(ge=2, le=1024, description="downsample: size of the averaged blocks")
    ] = 4
    is_residual: Annotated[
        bool,
        Meta(description="paired: predict the difference from y, where the channels allow it"),
    ] = True


@dataclass(frozen=True)
class TreeSpec(Section):
    """its layout"""

    branching: Annotated[
        int, Meta(ge=2, le=4096, description="K, children per node, at least 2")
    ] = 3
    depth: Annotated[
        int,
        Meta(
            ge=0,
            le=12,
            description="d, levels below the root; 0 is a plain MSE estimator. The network has "
            "K^d leaves",
        ),
    ] = 2


@dataclass(frozen=True)
class NetworkSpec(Section):
    """the U-Net

    A recipe of your own that gives none of `kind`, `c_init`, `width`, `steps`, `doublings`,
    `decoder`, `multipliers` and `blocks` gets a network from `ptrees train` that suits number and
    size of the pictures and the machine. It is told, and kept in the run's recipe.
    """

    kind: Annotated[
        Literal["unet", "residual"],
        Meta(
            description="`unet` (the paper's), or `residual`: residual blocks and attention, the "
            "network of the diffusion baselines without their noise level; it needs `decoder = "
            '"shared"`'
        ),
    ] = "unet"
    c_init: Annotated[
        int,
        Meta(
            ge=1,
            le=4096,
            description="channels per leaf at the first level; the paper uses 4 and 8",
        ),
    ] = 4
    width: Annotated[
        int,
        Meta(
            ge=0,
            le=65_536,
            description="channels of the first level, a multiple of K^d unless the decoder is "
            "shared; 0: `c_init` · K^d",
        ),
    ] = 0
    steps: Annotated[
        int,
        Meta(
            ge=1,
            le=12,
            description="how often the image is halved on the way down; more than the paper's "
            "four show the deepest level all of a large image",
        ),
    ] = 4
    doublings: Annotated[
        int,
        Meta(
            ge=0,
            le=12,
            description="how many of the first `steps` double the channels, as all of the paper's "
            "four do; fewer make a smaller network, which overfits less",
        ),
    ] = 4
    decoder: Annotated[
        Literal["disjoint", "shared"],
        Meta(description="`disjoint` (one decoder per leaf) or `shared`"),
    ] = "disjoint"
    multipliers: Annotated[
        tuple[Annotated[int, Meta(ge=-(2**63), le=64)], ...],
        MANY,
        Meta(
            description="residual: channels of each level in units of `width`, each level half "
            "the size of the one before; `steps` and `doublings` have no part then"
        ),
    ] = (1, 2, 3, 4)
    blocks: Annotated[
        int,
        Meta(
            ge=1,
            le=64,
            description="residual: blocks of each level on the way down; on the way up one more",
        ),
    ] = 2
    attention: Annotated[
        tuple[Whole, ...],
        MANY,
        Meta(
            description="residual: the levels, 0 being the full size, in which every pixel looks "
            "at all others"
        ),
    ] = (2, 3)
    padding: Annotated[
        Literal["reflect", "zeros"],
        Meta(
            description="how images are padded to sides that can be halved so often: `reflect` or "
            "`zeros`"
        ),
    ] = "reflect"
    head_norm: Annotated[
        Literal["layer", "batch"],
        Meta(description="normalisation of the probability head: `layer`, or the paper's `batch`"),
    ] = "layer"
    dropout: Annotated[
        Share,
        Meta(
            description="of whole maps, in the two deepest levels of the encoder; residual: of "
            "numbers, in every block"
        ),
    ] = 0.0
    head_dropout: Annotated[Share, Meta(description="in the probability head")] = 0.0


@dataclass(frozen=True)
class LossSpec(Section):
    """what leaves learn, and from which images"""

    probability: Annotated[
        Literal["cross_entropy", "paper"],
        Meta(description="`cross_entropy` on the winning leaf, or `paper`: squared errors only"),
    ] = "cross_entropy"
    beta: Annotated[
        Least0,
        Meta(description="weight of the cross-entropy, in units of the root's squared error"),
    ] = 0.4
    epsilon_start: Annotated[Least0, Meta(description="epochs of plain MSE for all nodes")] = 5.0
    epsilon_scale: Annotated[
        float, Meta(description="epochs in which the losers' weight then falls to 1/e")
    ] = 2.0
    epsilon_floor: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="below this it does not fall: 0.01 to 0.05 keeps leaves that never win "
            "near their siblings",
        ),
    ] = 0.0
    guided_epochs: Annotated[
        Least0,
        Meta(
            description="epochs, once ε starts to fall, in which leaves learn clusters of what "
            "the root misses, so that rare answers get a leaf of their own; then the nearest leaf "
            "learns as usual; 0: off"
        ),
    ] = 0.0
    focus: Annotated[
        tuple[float, ...],
        MANY,
        Meta(
            description="`[top, bottom, left, right]` of a part of the picture, as shares of its "
            "height and width: children are told apart by this part alone, and learn the whole "
            "picture; `[]`: by all pixels"
        ),
    ] = ()
    is_by_shape: Annotated[
        bool,
        Meta(
            description="`true`: shapes tell children apart, those of the part or of the whole "
            "picture: in grey, without what a level and a slope explain; colours and light are "
            "left to each child to average"
        ),
    ] = False
    surprise: Annotated[
        tuple[float, ...],
        MANY,
        Meta(
            description="a number, or one for each level: what a child's surprise, −ln of its "
            "probability among its siblings, costs it when the truth chooses whom to teach, in "
            "units of the root's squared error: a little makes trees more predictable; 0: squared "
            "errors alone"
        ),
    ] = (0.0,)
    conscience: Annotated[
        Least0,
        Meta(
            description="1: for the first half of the training siblings share the images of their "
            "parent equally, so that none dies; fades out; 0: off"
        ),
    ] = 0.0

    @property
    def cross_entropy_weight(self) -> float:
        """β; the paper's own loss of probabilities has none."""
        return 0.0 if self.probability == "paper" else self.beta


@dataclass(frozen=True)
class OptimizerSpec(Section):
    """how weights move"""

    name: Annotated[Literal["adam", "sgd"], Meta(description="or `sgd`, with momentum 0.9")] = (
        "adam"
    )
    lr: Annotated[Positive, Meta(description="learning rate of the network")] = 1e-3
    head_lr: Annotated[
        Positive,
        Meta(description="learning rate of the probability head; the paper's is 2e-4"),
    ] = 1e-3
    weight_decay: Annotated[
        Least0, Meta(description="decoupled, on convolution and linear weights")
    ] = 0.0
    schedule: Annotated[Literal["plateau", "cosine"], Meta(description="or `cosine`")] = "plateau"
    patience: Annotated[
        Count,
        Meta(
            description="plateau: after more epochs than this (of a baseline: log lines) without "
            "progress the learning rate falls to a tenth"
        ),
    ] = 10
    min_lr: Annotated[Least0, Meta(description="below this it does not go")] = 5e-6
    warmup_steps: Annotated[Count, Meta(description="the first steps rise linearly to `lr`")] = 0
    clip: Annotated[Least0, Meta(description="largest norm of the gradient; 0: no limit")] = 0.0


@dataclass(frozen=True)
class BalancerSpec(Section):
    """equal steps for all leaves"""

    is_on: Annotated[
        bool, Meta(description="draw the samples of rare leaves more often, and weigh them less")
    ] = False
    start: Annotated[float, Meta(description="from this epoch on; one after ε starts to fall")] = (
        6.0
    )
    ridge: Annotated[
        float, Meta(description="how near to uniform the drawing stays; larger: nearer")
    ] = 1e-3
    floor: Annotated[
        float,
        Meta(
            ge=0,
            lt=1,
            description="every sample is drawn at least this share of its fair share; 0 is the "
            "paper",
        ),
    ] = 0.1
    is_exact: Annotated[
        bool,
        Meta(description="solve the sampling problem exactly instead of the paper's closed form"),
    ] = False
    is_greedy: Annotated[
        bool,
        Meta(
            description="batches of the samples most behind, as in the paper; false: draw at random"
        ),
    ] = True
    is_windowed: Annotated[
        bool, Meta(description="true: greedy as in the paper, which forgets within an epoch")
    ] = False
    refresh_every: Annotated[
        Whole,
        Meta(
            description="batches between two solutions of the sampling problem; they are drawn "
            "(unless `is_greedy = false`) and their winners counted together (neither if "
            "`is_windowed = true`)"
        ),
    ] = 1


@dataclass(frozen=True)
class TrainingSpec(Section):
    """how long, how large, how fast"""

    epochs: Annotated[int, Meta(ge=1, le=1_000_000, description="how long")] = 70
    batch_size: Annotated[
        int, Meta(ge=1, le=1_000_000, description="over all processes together")
    ] = 32
    precision: Annotated[
        str,
        Meta(
            description="bf16 on GPUs that have it, else 32-bit; or a name of Lightning Fabric's, "
            "`32-true`, `bf16-mixed` …"
        ),
    ] = "auto"
    average_half_life: Annotated[
        Least0,
        Meta(description="half-life of the average of the weights in epochs; 0: none"),
    ] = 0.0
    calibrate: Annotated[
        bool,
        Meta(
            description="at the end, fit the strength and the offsets of the best weights' logits "
            "to the validation images, where cross-validation says that it helps "
            "([choosing.md](choosing.md))"
        ),
    ] = False
    compile: Annotated[
        bool,
        Meta(description="fuse the network's operations; pays on CUDA after half a minute"),
    ] = False
    save_seconds: Annotated[Least0, Meta(description="how often the state is saved")] = 60.0
    picture_every: Annotated[
        Count, Meta(description="epochs between pictures of trees in `RUN/trees/`; 0: none")
    ] = 10
    evaluation_batch: Annotated[
        int, Meta(ge=1, le=1_000_000, description="images per batch outside training")
    ] = 256


MOST_LEAVES = 4096
"""Leaves of a tree."""
RENAMED = {
    "loss.seeds": "loss.guided_epochs",
    "loss.rate": "loss.surprise",
    "training.ema": "training.average_half_life",
}
"""Keys of stored recipes by the names they have now."""
RETIRED = {
    "network.head_layers": 3,
    "network.is_head_detached": False,
    "loss.is_rate_relative": False,
    "loss.is_light_ignored": False,
    "optimizer.momentum": 0.9,
    "training.capture": None,
}
"""Keys of stored recipes that nobody used, with the only value that is still done; None: any, as
the key did not matter to what was trained."""
BEFORE = {"data": {"split_order": "sorted"}}
"""Keys whose default is not what was done before they came."""
