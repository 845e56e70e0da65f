r"""Fitted probabilities: to held-out images after training, free at prediction.

A network that sees few images many times grows too sure of which leaf they reach. Its leaves may
still be good, and its logits $z$ still know something; they are only too loud. So, with the network
as it is, one strength $s \ge 0$ and one offset $b_n$ per leaf are fitted on the validation images:

$$ \ln \alpha' = \ln \mathrm{softmax}\big(\bar z + s\,(z - \bar z) + b\big)
               = \ln \mathrm{softmax}(s z + c), \qquad c = (1 - s)\,\bar z + b, $$

$\bar z$ being the mean of $z$ over these images. $s$ says how much an image's own logits count; at
$s = 0$ all images get the same probabilities. $s = 1$, $b = 0$ changes nothing. Both minimise the
NLL of the leaf that the truth reaches, plus what departing from there costs:

$$ J(s, b) = -\sum_i \ln \alpha'_{\mathrm{leaf}(i)}(i)
             + \tfrac12 (s - 1)^2 + \tfrac{1}{2 \tau^2} \lVert b \rVert^2 . $$

Every number fitted freely to $N$ images costs $1/2N$ nats on new ones: nothing for $s$, but 0.02
for nine offsets and 250 images. So the offsets are expected within a spread $\tau$, and five-fold
cross-validation chooses it ($\tau = 0$: only $s$), or chooses to leave all as it is. $J$ is convex,
with few unknowns: Newton's method finds its minimum in a few steps.

The result goes into the last linear layer, $W \leftarrow sW$ and $w \leftarrow sw + c$: the file
and the prediction are those of any other model. Leaves stay the same. Their ancestors, being means
weighted by $\alpha$, move a little, and with them the path of a truth half-way between two of them.
Of a growing network it is the children's logits at all nodes on the truths' paths, in regions as in
training, that one strength and K offsets are fitted to.

Deviation: the paper leaves the probabilities as trained. Off unless `training.calibrate` is true.
(What `ptrees calibrate` makes are guarantees, of another kind: `guarantee/`.)
"""

import copy
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from posterior_trees import store
from posterior_trees.data import ImageSet, find_groups, measured_batch
from posterior_trees.errors import RunError
from posterior_trees.evaluation.score import score
from posterior_trees.models.checkpoint import load_weights, read_tensors, save_model
from posterior_trees.predictor import GrowingPredictor, TreePredictor
from posterior_trees.recipe import Recipe
from posterior_trees.training.growing import choices
from posterior_trees.training.run import Run, read_log

FOLDS = 5
SPREADS = (0.0, 0.1, 0.3, 1.0)
"""Spreads of the offsets to choose from, in nats; 0: only the strength is fitted."""
NEWTON_STEPS = 100
Logits = Float[Tensor, "n k"]
Reached = Int[Tensor, "n"]
Theta = Float[Tensor, "m"]


class Calibration(NamedTuple):
    """What becomes of logits $z$: $s z + c$. The offsets $c$ sum to 0."""

    strength: float
    offsets: Float[Tensor, "k"]

    def apply(self, logits: Logits) -> Logits:
        """Calibrated log-probabilities, in float64."""
        return (self.strength * logits.double() + self.offsets).log_softmax(dim=1)

    def nll(self, logits: Logits, leaf: Reached) -> Float[Tensor, "n"]:
        return -self.apply(logits).gather(1, leaf[:, None]).squeeze(1)

    def fold_into(self, layer: nn.Linear) -> None:
        """Make a layer that gave the logits give the calibrated ones."""
        weight, bias = (part.detach().cpu().double() for part in (layer.weight, layer.bias))
        with torch.no_grad():  # float64 on the CPU: some devices have none
            layer.weight.copy_((self.strength * weight).to(layer.weight.dtype))
            layer.bias.copy_((self.strength * bias + self.offsets).to(layer.bias.dtype))


def unchanged(leaves: int) -> Calibration:
    return Calibration(1.0, torch.zeros(leaves, dtype=torch.float64))


def choose(logits: Logits, leaf: Reached) -> Calibration:
    """The calibration that cross-validation expects to be best on new images.

    `logits` may be log-probabilities, `leaf` is the leaf that each truth reaches. Ties go to the
    least change; fewer than five images change nothing. Folds are runs of neighbours, so that
    patches of one image stay together.
    """
    as_is = unchanged(logits.shape[1])
    if len(leaf) < FOLDS:
        return as_is
    costs = [as_is.nll(logits, leaf).sum().item()]
    costs += [_cross_validate(logits, leaf, spread) for spread in SPREADS]
    best = costs.index(min(costs))
    return solve(logits, leaf, SPREADS[best - 1]) if best else as_is


def _cross_validate(logits: Logits, leaf: Reached, spread: float | int) -> float:
    """Total NLL of the images, each with the calibration of the other folds."""
    total = 0.0
    for fold in torch.arange(len(leaf)).tensor_split(FOLDS):
        others = torch.ones(len(leaf), dtype=torch.bool)
        others[fold] = False
        found = solve(logits[others], leaf[others], spread)
        total += found.nll(logits[fold], leaf[fold]).sum().item()
    return total


def solve(logits: Logits, leaf: Reached, spread: float | int) -> Calibration:
    r"""The minimum of $J$ for offsets of this spread $\tau$.

    $J$ is convex, so if its minimum has $s < 0$, the one with $s \ge 0$ has $s = 0$.
    """
    problem = Problem(logits, leaf, spread)
    theta = problem.minimise(torch.tensor([1.0] + [0.0] * logits.shape[1], dtype=torch.float64))
    if theta[0] < 0:
        theta[0] = 0.0
        theta = problem.minimise(theta, is_strength_free=False)
    offsets = (1 - theta[0]) * problem.center + theta[1:]
    return Calibration(theta[0].item(), offsets - offsets.mean())


class Problem:
    r"""$J(\theta)$ with $\theta = (s, b)$, its gradient and its Hessian.

    With $u = z - \bar z$, $p = \alpha'$, $r = p$ less 1 at the leaf reached, and means $E_p$ and
    variances $V_p$ over leaves, all summed over images and without the quadratic terms:

    $$ \partial_s = r \cdot u, \quad \partial_b = r, \quad \partial_{ss} = V_p u, \quad
       \partial_{sb} = p \,(u - E_p u), \quad \partial_{bb} = \mathrm{diag}\,p - p p^\top . $$
    """

    def __init__(self, logits: Logits, leaf: Reached, spread: float | int) -> None:
        z = logits.double().log_softmax(dim=1)
        self.center = z.mean(dim=0)
        self.u, self.leaf, self.has_offsets = z - self.center, leaf[:, None], spread > 0
        stiffness = spread**-2 if self.has_offsets else 1.0
        self.ridge = torch.tensor([1.0] + [stiffness] * z.shape[1], dtype=torch.float64)
        self.target = torch.zeros_like(self.ridge)
        self.target[0] = 1.0

    def log_probs(self, theta: Theta) -> Logits:
        return (self.center + theta[0] * self.u + theta[1:]).log_softmax(dim=1)

    def value(self, theta: Theta) -> float:
        nll = -self.log_probs(theta).gather(1, self.leaf).sum()
        return (nll + (self.ridge * (theta - self.target).square()).sum() / 2).item()

    def slopes(self, theta: Theta) -> tuple[Theta, Float[Tensor, "m m"]]:
        """The gradient and the Hessian."""
        p = self.log_probs(theta).exp()
        r = p.scatter_add(1, self.leaf, torch.full_like(p, -1.0))
        gradient = torch.cat([(r * self.u).sum().reshape(1), r.sum(dim=0)])
        tilt = p * (self.u - (p * self.u).sum(dim=1, keepdim=True))
        hessian = torch.diag(self.ridge)
        hessian[0, 0] += (tilt * self.u).sum()
        hessian[0, 1:] += tilt.sum(dim=0)
        hessian[1:, 0] += tilt.sum(dim=0)
        hessian[1:, 1:] += torch.diag(p.sum(dim=0)) - p.T @ p
        return gradient + self.ridge * (theta - self.target), hessian

    def minimise(self, theta: Theta, *, is_strength_free: bool = True) -> Theta:
        """Newton's method, with steps halved until they lead down."""
        free = torch.full_like(self.ridge, self.has_offsets, dtype=torch.bool)
        free[0] = is_strength_free
        for _ in range(NEWTON_STEPS if free.any() else 0):
            gradient, hessian = self.slopes(theta)
            step = torch.zeros_like(theta)
            step[free] = -torch.linalg.solve(hessian[free][:, free], gradient[free])
            value = self.value(theta)
            if -(gradient @ step).item() < 1e-12 * (1 + value):  # less than rounding can tell
                return theta + step
            while self.value(theta + step) > value:
                step = step / 2
            theta = theta + step
        return theta


def find_logits(predictor: TreePredictor, y: Float[Tensor, "b *shape"]) -> nn.Linear:
    """The linear layer that gives the logits, in any network: the last one whose outputs, after a
    softmax, are the leaf probabilities of the trees of `y`."""
    seen: list[tuple[nn.Linear, Tensor]] = []
    hooks = [
        layer.register_forward_hook(lambda layer, _, outputs: seen.append((layer, outputs)))
        for layer in predictor.network.modules()
        if isinstance(layer, nn.Linear) and layer.bias is not None
    ]
    try:
        with torch.inference_mode():
            level = 1 if isinstance(predictor, GrowingPredictor) else -1
            log_probs = predictor.eval()(y).log_probs[level]
    finally:
        for hook in hooks:
            hook.remove()
    for layer, outputs in reversed(seen):
        if outputs.shape == log_probs.shape and torch.allclose(
            outputs.to(log_probs.dtype).log_softmax(dim=1), log_probs, atol=1e-3
        ):
            return layer
    raise RunError(
        f"training.calibrate is true, but no nn.Linear with a bias among the {len(hooks)} of "
        f"{type(predictor.network).__name__} gives the logits of its {predictor.num_leaves} "
        "leaves. Let the network end in one (posterior_trees.networks.ProbabilityHead does), or "
        "set training.calibrate=false"
    )


def find_layer(predictor: TreePredictor, images: ImageSet | None, seed: int) -> nn.Linear:
    """The layer to calibrate, if there is one, and images to calibrate it on."""
    if images is None or not len(images):
        raise RunError(
            "training.calibrate is true and there are 0 validation images: probabilities are "
            "calibrated on held-out images. Give fit some, images=(training, validation), or set "
            "training.calibrate=false"
        )
    place = predictor.measurement, seed, predictor.device
    _, y = measured_batch(images, torch.arange(1), *place)
    return find_logits(predictor, y)


def describe_order(recipe: Recipe, images: ImageSet) -> list[str]:
    """What to beware of where probabilities are fitted to groups that are not like those to come:
    of cells, sorted wells made the NLL of the test wells 0.26 nats worse."""
    data = recipe.data
    if data.split_order != "sorted" or find_groups(images.names, data.split) is None:
        return []
    return [
        "training.calibrate fits probabilities to validation images that come in groups, split in "
        "the order of their names: such groups differ in kind, and what suits them may harm the "
        "others. Set data.split_order='hash', or training.calibrate=false"
    ]


def calibrate(predictor: TreePredictor, images: ImageSet, recipe: Recipe) -> dict[str, Any]:
    """Calibrate a predictor on held-out images, in place; returns what was done.

    That is `strength` and `offsets` of the logits, the number of `images`, and per depth `nll`,
    `entropy` and `psnr` (of the hole, if there is one) `_before` and `_after`. Trees are predicted
    anew for the latter; should their NLL be higher nevertheless, nothing is changed.
    """
    layer = find_layer(predictor, images, recipe.seed)
    options = {"batch_size": recipe.training.evaluation_batch, "seed": recipe.seed}
    before = after = score(predictor, images, **options)
    if isinstance(predictor, GrowingPredictor):
        found = choose(*choices(predictor, images, recipe))
    else:
        log_probs = before["probs"].double().clamp_min(torch.finfo(torch.float32).tiny).log()
        found = choose(log_probs, before["leaf"])
    if found.strength != 1 or found.offsets.any():
        kept = copy.deepcopy(layer.state_dict())
        found.fold_into(layer)
        after = score(predictor, images, **options)
        if not after["nll"][:, -1].mean() < before["nll"][:, -1].mean():
            layer.load_state_dict(kept)
            found, after = unchanged(len(found.offsets)), before
    record = {"strength": found.strength, "offsets": found.offsets.tolist(), "images": len(images)}
    return {**record, **_means(before, "before"), **_means(after, "after")}


def _means(scores: dict[str, Tensor], moment: str) -> dict[str, list[float]]:
    named = {"nll": scores["nll"], "entropy": scores["entropy"]}
    named["psnr"] = scores.get("psnr_hole", scores["psnr"])
    return {f"{name}_{moment}": v.double().mean(dim=0).tolist() for name, v in named.items()}


def calibrate_run(run: Run, predictor: TreePredictor, images: ImageSet) -> None:
    """Calibrate the best weights of a finished run, once; `predictor` keeps its own weights.

    The record goes into the last line of the log and then, with the weights, into the model file,
    which says whether a run is calibrated. Killed anywhere in between, it is done again alike.
    """
    facts = store.read_facts(run.model_file)
    if "calibration" in facts["about"]:
        return
    network = predictor.network
    own = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    try:
        load_weights(network, read_tensors(run.model_file)[0], origin=str(run.model_file))
        record = calibrate(predictor, images, run.recipe)
        *lines, last = read_log(run.log_file)
        run.write_log([*lines, last | {"calibration": record}])
        about = facts["about"] | {"calibration": record}
        save_model(run.model_file, predictor, run.recipe, about)
    finally:
        network.load_state_dict(own)
