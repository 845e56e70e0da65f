"""What a recipe can say: its sections, and every key with its type, limits, default and meaning.

Nothing of it is said twice: `section.py` checks by these declarations, `recipe.py` reads and writes
by them, and `reproduction/scripts/recipe_page.py` makes docs/recipes.md of them. A recipe may come
with somebody else's model, so numbers have largest values, too: nothing fits into memory, or ends,
long before.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta, Struct

from posterior_trees.recipe.section import Section

LARGEST = 2**63 - 1
MANY = Meta(max_length=16)
Share = Annotated[float, Meta(ge=0, le=0.99)]
Positive = Annotated[float, Meta(gt=0)]
Least0 = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0, le=LARGEST)]
Whole = Annotated[int, Meta(ge=-(2**63), le=LARGEST)]
Side = Annotated[int, Meta(ge=-(2**63), le=8192)]
Multiplier = Annotated[int, Meta(ge=-(2**63), le=64)]


class Channel(Struct, frozen=True, forbid_unknown_fields=True):
    """one channel of pictures that have several, by its name or its number from 0"""

    channel: str | Annotated[int, Meta(ge=0, le=1024)]


@dataclass(frozen=True)
class DataSpec(Section):
    """which images

    More in [data.md](data.md).
    """

    name: str = ""
    """the set: `DIR/name/` or `DIR/name.tar`, with `DIR` from `--data`"""
    extra: Annotated[tuple[str, ...], MANY] = ()
    """more sets of images, cut and resized alike: all of them train, none is judged"""
    kind: Literal["images", "edges", "pairs", "idx"] = "images"
    """`images` (y is made from x), `edges` (y is the edge map of x), `pairs` (two folders) or `idx`
    (MNIST's files)"""
    channels: Literal[1, 3] = 3
    """channels of x, 1 or 3; files are converted"""
    size: Annotated[tuple[Side, ...], MANY] = ()
    """height and width to crop and resize to; empty: as stored"""
    scale: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """1, 1/2, 1/3 …: first of all means of whole blocks of pixels, as `ptrees predict --scale`"""
    levels: Annotated[tuple[float, ...], MANY] = ()
    """stored values that become black and white, `[150, 2600]`; four: of y, then of x. Empty: the
    range of 8 or 16 bits"""
    gamma: Positive = 1.0
    """then values are raised to this power"""
    inputs: str | Channel = ""
    """pairs: folder of the measurements y, or `{channel = "Actin"}`, a channel of each picture"""
    targets: str | Channel = ""
    """pairs: folder of the clean images x, or their channel"""
    input_channels: Annotated[int, Meta(ge=1, le=1024)] = 1
    """pairs: channels of y, 1 or 3"""
    shift: Annotated[tuple[float, ...], MANY] = ()
    """pairs: rows and columns by which y is moved to lie on x; `ptrees evaluate` says how far x
    lies from where a root expects it. Empty: none"""
    split: Literal["name", "well", "files"] = "name"
    """`name`, `well` (the name up to its first `_`) or `files` (IDX)"""
    split_order: Literal["hash", "sorted"] = "hash"
    """draw files or wells by a hash of their names, so that new ones move no others; `sorted`: the
    last names, as older models were split"""
    validation: float = 0.05
    """share of the images that chooses the best weights; 0: train on all, keep the last"""
    test: float = 0.1
    """share of the images that training never sees"""
    patch: Annotated[int, Meta(ge=0, le=8192)] = 0
    """train on random square windows of this many pixels, judge on a fixed grid of them; 0: whole
    images"""
    repeat: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    """how often an epoch takes each image: with `patch`, windows of large images"""
    augment: Annotated[tuple[str, ...], MANY] = ()
    """any of `flip`, `symmetries`, `affine`, `brightness`"""


@dataclass(frozen=True)
class MeasurementSpec(Section):
    """what is known of x"""

    kind: Literal["", "inpaint", "colorize", "denoise", "downsample", "paired"] = ""
    """`inpaint`, `colorize`, `denoise`, `downsample` or `paired`"""
    rows: Annotated[tuple[Whole, ...], MANY] = ()
    """inpaint: first and last hidden row, inclusive"""
    columns: Annotated[tuple[Whole, ...], MANY] = ()
    """inpaint: first and last hidden column, inclusive"""
    of: Annotated[tuple[Side, ...], MANY] = ()
    """inpaint: height and width of the images that `rows` and `columns` are given for"""
    fill: float = 0.5
    """inpaint: what the network sees in the hole"""
    sigma: Positive = 0.1
    """denoise: standard deviation of the noise, for images in [0, 1]"""
    factor: Annotated[int, Meta(ge=2, le=1024)] = 4
    """downsample: size of the averaged blocks"""
    is_residual: bool = True
    """paired: predict the difference from y, where the channels allow it"""


@dataclass(frozen=True)
class TreeSpec(Section):
    """its layout"""

    branching: Annotated[int, Meta(ge=2, le=4096)] = 3
    """K, children per node, at least 2"""
    depth: Annotated[int, Meta(ge=0, le=12)] = 2
    """d, levels below the root; 0 is a plain MSE estimator. The network has K^d leaves; a growing
    one grows so many at once"""


@dataclass(frozen=True)
class NetworkSpec(Section):
    """the U-Net

    A recipe of your own that gives none of `kind`, `c_init`, `width`, `steps`, `doublings`,
    `decoder`, `multipliers` and `blocks` gets a network from `ptrees train` that suits number and
    size of the pictures and the machine, and so does one that says only `kind = "growing"`. It is
    told, and kept in the run's recipe.
    """

    kind: Literal["unet", "residual", "growing"] = "unet"
    """`unet` (the paper's), or `residual`: residual blocks and attention, the network of the
    diffusion baselines without their noise level; it needs `decoder = "shared"`. `growing`: its
    `trunk` is asked node by node, for trees that grow where one looks (`predictor.begin`)"""
    trunk: Literal["unet", "residual"] = "unet"
    """growing: which network is asked; it emits the K children of a node"""
    levels: Annotated[int, Meta(ge=1, le=32)] = 6
    """growing: for how many levels below the root it is trained"""
    c_init: Annotated[int, Meta(ge=1, le=4096)] = 4
    """channels per leaf at the first level; the paper uses 4 and 8"""
    width: Annotated[int, Meta(ge=0, le=65_536)] = 0
    """channels of the first level, a multiple of K^d unless the decoder is shared; 0: `c_init` ·
    K^d"""
    steps: Annotated[int, Meta(ge=1, le=12)] = 4
    """how often the image is halved on the way down; more than the paper's four show the deepest
    level all of a large image"""
    doublings: Annotated[int, Meta(ge=0, le=12)] = 4
    """how many of the first `steps` double the channels, as all of the paper's four do; fewer make
    a smaller network, which overfits less"""
    decoder: Literal["disjoint", "shared"] = "disjoint"
    """`disjoint` (one decoder per leaf) or `shared`"""
    multipliers: Annotated[tuple[Multiplier, ...], MANY] = (1, 2, 3, 4)
    """residual: channels of each level in units of `width`, each level half the size of the one
    before; `steps` and `doublings` have no part then"""
    blocks: Annotated[int, Meta(ge=1, le=64)] = 2
    """residual: blocks of each level on the way down; on the way up one more"""
    attention: Annotated[tuple[Whole, ...], MANY] = (2, 3)
    """residual: the levels, 0 being the full size, in which every pixel looks at all others"""
    padding: Literal["reflect", "zeros"] = "reflect"
    """how images are padded to sides that can be halved so often: `reflect` or `zeros`"""
    head_norm: Literal["layer", "batch"] = "layer"
    """normalisation of the probability head: `layer`, or the paper's `batch`"""
    dropout: Share = 0.0
    """of whole maps, in the two deepest levels of the encoder; residual: of numbers, in every
    block"""
    head_dropout: Share = 0.0
    """in the probability head"""


@dataclass(frozen=True)
class LossSpec(Section):
    """what leaves learn, and from which images"""

    probability: Literal["cross_entropy", "paper"] = "cross_entropy"
    """`cross_entropy` on the winning leaf, or `paper`: squared errors only"""
    beta: Least0 = 0.4
    """weight of the cross-entropy, in units of the root's squared error"""
    epsilon_start: Least0 = 5.0
    """epochs of plain MSE for all nodes"""
    epsilon_scale: float = 2.0
    """epochs in which the losers' weight then falls to 1/e"""
    epsilon_floor: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """below this it does not fall: 0.01 to 0.05 keeps leaves that never win near their siblings"""
    guided_epochs: Least0 = 0.0
    """epochs, once ε starts to fall, in which leaves learn clusters of what the root misses, so
    that rare answers get a leaf of their own; then the nearest leaf learns as usual; 0: off"""
    focus: Annotated[tuple[float, ...], MANY] = ()
    """`[top, bottom, left, right]` of a part of the picture, as shares of its height and width:
    children are told apart by this part alone, and learn the whole picture; `[]`: by all pixels"""
    features: str = "pixels"
    """what tells children apart: `pixels`; `shape`, in grey and without what a level and a slope
    explain, so that colours and light are left to each child to average; `edges`; or
    `module:function`, your own, of images (n, c, h, w). Each of the part, or of the picture"""
    regions: Annotated[float, Meta(ge=0, le=1)] = 0.5
    """growing: share of the pictures whose children are told apart by a part of what is open, drawn
    anew in every step (a box, a blob or a stroke of any size); the others' by all of it"""
    surprise: Annotated[tuple[float, ...], MANY] = (0.0,)
    """a number, or one for each level: what a child's surprise, −ln of its probability among its
    siblings, costs it when the truth chooses whom to teach, in units of the root's squared error: a
    little makes trees more predictable; 0: squared errors alone"""
    conscience: Least0 = 0.0
    """1: for the first half of the training siblings share the images of their parent equally, so
    that none dies; fades out; 0: off"""

    @property
    def cross_entropy_weight(self) -> float:
        """β; the paper's own loss of probabilities has none."""
        return 0.0 if self.probability == "paper" else self.beta


@dataclass(frozen=True)
class OptimizerSpec(Section):
    """how weights move"""

    name: Literal["adam", "sgd"] = "adam"
    """or `sgd`, with momentum 0.9"""
    lr: Positive = 0.001
    """learning rate of the network"""
    head_lr: Positive = 0.001
    """learning rate of the probability head; the paper's is 2e-4"""
    weight_decay: Least0 = 0.0
    """decoupled, on convolution and linear weights"""
    schedule: Literal["plateau", "cosine"] = "plateau"
    """or `cosine`"""
    patience: Count = 10
    """plateau: after more epochs than this (of a baseline: log lines) without progress the learning
    rate falls to a tenth"""
    min_lr: Least0 = 5e-06
    """below this it does not go"""
    warmup_steps: Count = 0
    """the first steps rise linearly to `lr`"""
    clip: Least0 = 0.0
    """largest norm of the gradient; 0: no limit"""


@dataclass(frozen=True)
class BalancerSpec(Section):
    """equal steps for all leaves"""

    is_on: bool = False
    """draw the samples of rare leaves more often, and weigh them less"""
    start: float = 6.0
    """from this epoch on; one after ε starts to fall"""
    ridge: float = 0.001
    """how near to uniform the drawing stays; larger: nearer"""
    floor: Annotated[float, Meta(ge=0, lt=1)] = 0.1
    """every sample is drawn at least this share of its fair share; 0 is the paper"""
    is_exact: bool = False
    """solve the sampling problem exactly instead of the paper's closed form"""
    is_greedy: bool = True
    """batches of the samples most behind, as in the paper; false: draw at random"""
    is_windowed: bool = False
    """true: greedy as in the paper, which forgets within an epoch"""
    refresh_every: Whole = 1
    """batches between two solutions of the sampling problem; they are drawn (unless `is_greedy =
    false`) and their winners counted together (neither if `is_windowed = true`)"""


@dataclass(frozen=True)
class TrainingSpec(Section):
    """how long, how large, how fast"""

    epochs: Annotated[int, Meta(ge=1, le=1_000_000)] = 70
    """how long"""
    batch_size: Annotated[int, Meta(ge=1, le=1_000_000)] = 32
    """over all processes together"""
    precision: str = "auto"
    """bf16 on GPUs that have it, else 32-bit; or a name of Lightning Fabric's, `32-true`,
    `bf16-mixed` …"""
    average_half_life: Least0 = 0.0
    """half-life of the average of the weights in epochs; 0: none"""
    calibrate: bool = False
    """at the end, fit the strength and the offsets of the best weights' logits to the validation
    images, where cross-validation says that it helps ([choosing.md](choosing.md))"""
    compile: bool = False
    """fuse the network's operations; pays on CUDA after half a minute"""
    save_seconds: Least0 = 60.0
    """how often the state is saved"""
    picture_every: Count = 10
    """epochs between pictures of trees in `RUN/trees/`; 0: none"""
    evaluation_batch: Annotated[int, Meta(ge=1, le=1_000_000)] = 256
    """images per batch outside training"""


FEATURES = ("pixels", "shape", "edges")
"""Those of `loss.features` that have a name."""
MOST_LEAVES = 4096
"""Leaves of a tree."""
RENAMED = {
    "loss.seeds": "loss.guided_epochs",
    "loss.rate": "loss.surprise",
    "training.ema": "training.average_half_life",
    "loss.is_by_shape": "loss.features",
}
"""Keys of stored recipes by the names they have now."""
SAID = {"loss.is_by_shape": {"False": "pixels", "True": "shape"}}
"""… and what their values are called now, where that changed, too."""
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
