"""Diffusion models and GANs: their networks, losses, training and samples, on tiny images."""

import dataclasses
import json
import math
import operator
from pathlib import Path

import pytest
import torch
from posterior_trees_paper.baselines import learned, sampling
from posterior_trees_paper.baselines.diffusion import (
    DiffusionLearner,
    DiffusionModel,
    DiffusionUNet,
    ImageDenoiser,
    see,
    sinusoids,
)
from posterior_trees_paper.baselines.gan import GanModel, RcGanLearner
from posterior_trees_paper.baselines.sampling import (
    Baseline,
    build_measurements,
    load_baseline,
    save_baseline,
)
from posterior_trees_paper.baselines.spec import (
    FOR_TREES,
    parse_baseline,
    read_baseline,
    spec_from_facts,
    spec_to_facts,
)
from posterior_trees_paper.baselines.train import fit_baseline
from posterior_trees_paper.baselines.weights import average_share
from tiny import RECIPE, make_blobs, make_recipe

from posterior_trees import load, store
from posterior_trees.baselines.process import Denoiser
from posterior_trees.data import ImageSet, fingerprint
from posterior_trees.errors import ModelError, RecipeError, RunError
from posterior_trees.measure import Colorize, Denoise, Downsample, Inpaint, Paired
from posterior_trees.training.run import read_log
from posterior_trees.training.trainer import fit

RECIPES = Path(__file__).parents[1] / "recipes" / "baselines"
TINY = """
[baseline]
kind = "conditional"
base = 8
multipliers = [1, 2]
blocks = 1
attention = [1]
width = 4
critic = 4
log_every = 4
"""
HOLE = torch.zeros(8, 8, dtype=torch.bool)
HOLE[:5] = True


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tiny(kind: str = "conditional", *changes: str):
    """Recipe and spec of a model that trains in seconds."""
    common = [f"baseline.kind={kind}", "training.batch_size=8", "optimizer.lr=2e-3"]
    return parse_baseline(RECIPE + TINY, [*common, *changes])


def random_baseline(kind: str) -> Baseline:
    """A baseline whose weights were never trained, but are not zero."""
    torch.manual_seed(0)
    baseline = Baseline(*tiny(kind))
    for parameter in baseline.model.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.1)
    baseline.model.eval().requires_grad_(False)
    return baseline


def images() -> tuple:
    return make_blobs(32), make_blobs(16, seed=4)


@pytest.mark.parametrize(
    ("options", "channels", "millions"),
    [
        ({"base": 128, "attention": (1,)}, 3, 35.7),
        ({"base": 48}, 1, 5.0),
        ({"base": 64, "attention": (1, 2)}, 1, 9.3),
        ({"base": 64, "multipliers": (1, 2, 3, 4), "attention": (2, 3)}, 3, 22.1),
    ],
)
def test_networks_have_the_published_sizes(options, channels: int, millions: float) -> None:
    with torch.device("meta"):
        network = DiffusionUNet(channels, channels, **options)
    assert sum(p.numel() for p in network.parameters()) / 1e6 == pytest.approx(millions, abs=0.05)


def test_the_network_takes_any_size_and_starts_at_zero() -> None:
    network = DiffusionUNet(2, 1, base=8, multipliers=(1, 2, 2), blocks=1)
    x = torch.randn(2, 2, 7, 10, generator=seeded())
    out = network(x, torch.tensor([0, 999]))
    assert out.shape == (2, 1, 7, 10)
    assert not out.any()


def test_noise_levels_look_different_and_bounded() -> None:
    embedding = sinusoids(torch.arange(1000), 48)
    assert embedding.shape == (1000, 48)
    assert embedding.abs().max() <= 1
    assert torch.cdist(embedding[:1], embedding[1:]).min() > 0.5


@pytest.mark.parametrize(
    ("measurement", "channels", "share"),
    [(Inpaint(HOLE), 1, 5 / 8), (Colorize(), 3, 2 / 3), (Downsample(2), 1, 3 / 4)],
    ids=["hole", "colour", "blocks"],
)
def test_a_zero_network_has_loss_one_for_what_is_open(measurement, channels, share) -> None:
    """The noise has unit variance on the open part, and only that part counts."""
    assert torch.as_tensor(measurement.open_share).mean().item() == pytest.approx(share)
    recipe, spec = tiny()
    model = DiffusionModel(channels, spec, [measurement])
    learner = DiffusionLearner(model, [measurement], recipe, torch.device("cpu"))
    x = torch.rand(200, channels, 8, 8, generator=seeded())
    inputs = learner.draw(x, None, seeded(1))
    assert learner.loss(*inputs).item() == pytest.approx(1.0, abs=0.03)
    torch.testing.assert_close(inputs[2], measurement.project(inputs[2]))


def test_several_measurements_share_a_batch() -> None:
    recipe, spec = tiny()
    measurements = [Colorize(), Inpaint(HOLE), Downsample(2)]
    model = DiffusionModel(3, spec, measurements)
    learner = DiffusionLearner(model, measurements, recipe, torch.device("cpu"))
    x = torch.rand(40, 3, 8, 8, generator=seeded())
    _, _, e, seen = learner.draw(x, None, seeded(1))
    for measurement, mine in zip(measurements, e.split([14, 13, 13]), strict=True):
        torch.testing.assert_close(mine, measurement.project(mine))
    assert seen.shape == (40, 4, 8, 8)
    assert learner.loss(*learner.draw(x, None, seeded(1))).item() == pytest.approx(1, abs=0.1)


def test_the_network_sees_what_is_known_and_nothing_of_what_is_hidden() -> None:
    x = torch.rand(2, 1, 8, 8, generator=seeded())
    other = x.clone()
    other[:, :, :5] = 0.9
    hide = Inpaint(HOLE)
    assert torch.equal(see(hide, hide(2 * x - 1)), see(hide, hide(2 * other - 1)))
    seen = see(hide, hide(2 * x - 1))
    assert torch.equal(seen[:, :1, 5:], 2 * x[:, :, 5:] - 1)
    assert torch.equal(seen[:, 1:], (~HOLE).float().expand(2, 1, 8, 8))
    assert not seen[:, 0, :5].any()
    y = torch.rand(2, 1, 8, 8)
    assert torch.equal(see(Paired(1, 1), y), y)
    assert torch.equal(see(Denoise(0.1), y), y)


def test_a_conditional_denoiser_ignores_the_noise_where_y_is_known() -> None:
    denoise = ImageDenoiser(random_baseline("conditional").model)
    y = torch.rand(3, 1, 8, 8, generator=seeded())
    x_t = torch.randn(3, 1, 8, 8, generator=seeded(1))
    posterior = denoise.given(Inpaint(HOLE), y)
    changed = x_t.clone()
    changed[:, :, 5:] += 1
    first, second = posterior(x_t, 500), posterior(changed, 500)
    torch.testing.assert_close(first[:, :, :5], second[:, :, :5])
    assert denoise.evaluations == 2


@pytest.mark.parametrize("target", ["noise", "edm"])
def test_a_denoiser_shows_the_network_what_training_showed_it(target: str) -> None:
    """With an identity for a network, x0 = (k + g c) x_t."""

    class Echo(torch.nn.Module):
        def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            return x[:, :1]

    x_t = torch.randn(4, 1, 8, 8, dtype=torch.float64, generator=seeded())
    for kind in ("prior", "conditional"):
        _, spec = tiny(kind, f"baseline.target={target}")
        model = DiffusionModel(1, spec, [Inpaint(HOLE)], Echo())
        keep, gain, shrink = model.scales(model.alpha_bar[300])
        denoise = ImageDenoiser(model)
        given = denoise if kind == "prior" else denoise.given(Inpaint(HOLE), torch.zeros_like(x_t))
        found = given(x_t, 300)[..., :5, :]
        torch.testing.assert_close(found, (keep + gain * shrink) * x_t[..., :5, :])


def test_chunks_change_neither_the_estimate_nor_the_count() -> None:
    model = random_baseline("prior").model
    whole, pieces = ImageDenoiser(model), ImageDenoiser(model, chunk=3)
    x_t = torch.randn(7, 1, 8, 8, generator=seeded())
    torch.testing.assert_close(whole(x_t, 300), pieces(x_t, 300))
    assert whole.evaluations == pieces.evaluations == 1
    assert isinstance(whole, Denoiser)


@pytest.mark.parametrize(
    ("kind", "method"),
    [("prior", "ddnm"), ("prior", "ddrm"), ("prior", "repaint"), ("prior", "dps"),
     ("prior", "diffpir"), ("conditional", "conditional"), ("cgan", "cgan"), ("rcgan", "rcgan")],
)  # fmt: skip
def test_samples_are_images_that_agree_with_y(kind: str, method: str) -> None:
    baseline = random_baseline(kind)
    measurement = baseline.measurements[0]
    x, _ = make_blobs(2).batch([0, 1])
    y = measurement(x)
    options = {} if baseline.spec.kind.endswith("gan") else {"steps": 6}
    options |= {"jump": 2, "resamplings": 2} if method == "repaint" else {}
    samples, evaluations = baseline.sample(
        measurement, y, 3, method=method, generator=seeded(), **options
    )
    assert samples.shape == (2, 3, 1, 8, 8)
    assert samples.min() >= 0
    assert samples.max() <= 1
    known = y.unsqueeze(1).expand(-1, 3, -1, -1, -1)[..., 5:, :]
    torch.testing.assert_close(samples[..., 5:, :], known, rtol=0, atol=1e-6)
    assert samples[:, 0].sub(samples[:, 1]).abs().max() > 1e-3
    assert evaluations == {"repaint": 10}.get(
        method, 1 if baseline.spec.kind.endswith("gan") else 6
    )


def test_noise_of_a_measurement_is_given_in_the_scale_of_images(monkeypatch) -> None:
    """Samplers work in [-1, 1], twice as wide."""
    asked = {}

    def remember(denoise, measurement, y, n, *, noise=0.0, generator=None, clip=None):
        asked["noise"] = noise
        return torch.zeros(len(y), n, 1, 8, 8)

    monkeypatch.setitem(sampling.SAMPLERS, "ddnm", remember)
    baseline = random_baseline("prior")
    y = torch.zeros(1, 1, 8, 8)
    samples, _ = baseline.sample(baseline.measurements[0], y, 2, method="ddnm", noise=0.1)
    assert asked["noise"] == pytest.approx(0.2)
    assert samples.unique().tolist() == [0.5]


def test_training_lowers_the_loss_and_logs_held_out_images(tmp_path) -> None:
    recipe, spec = tiny("prior", "training.epochs=10", "baseline.log_every=20")
    fit_baseline(recipe, spec, tmp_path, images=images(), device="cpu")
    lines = read_log(tmp_path / "log.jsonl")
    assert [line["step"] for line in lines] == [20, 40]
    assert lines[1]["loss"] < 0.8 * lines[0]["loss"] < 0.9
    assert lines[1]["val_loss"] < lines[0]["val_loss"]
    best = load_baseline(tmp_path, "cpu")
    assert best.about["step"] == 40
    assert best.spec == spec


@pytest.mark.parametrize("kind", ["conditional", "cgan", "rcgan"])
def test_a_stopped_run_continues_to_the_same_weights(tmp_path, kind: str) -> None:
    recipe, spec = tiny(kind, "training.epochs=2", "baseline.dropout=0.1", "data.augment=['flip']")
    whole = fit_baseline(recipe, spec, tmp_path / "whole", images=images(), device="cpu")
    stopped = tmp_path / "stopped"
    for _ in range(8):  # each call does one step and stops
        again = fit_baseline(recipe, spec, stopped, images=images(), device="cpu", minutes=0)
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, again.model.state_dict()[name]), name
    logs = [read_log(folder / "log.jsonl") for folder in (tmp_path / "whole", stopped)]
    keys = [[{k: v for k, v in line.items() if k != "seconds"} for line in log] for log in logs]
    assert keys[0] == keys[1]


def test_a_run_that_breaks_keeps_its_last_good_state(tmp_path) -> None:
    recipe, spec = tiny(
        "prior", "training.epochs=4", "training.save_seconds=0", "optimizer.lr=1e20"
    )
    fit_baseline(recipe, spec, tmp_path, images=images(), device="cpu", minutes=0)
    with pytest.raises(RunError, match=r"NaN or infinite near step .*last good state is kept"):
        fit_baseline(recipe, spec, tmp_path, images=images(), device="cpu")
    kept = store.read(tmp_path / "state.safetensors")[0]
    assert all(t.isfinite().all() for t in kept.values() if t.is_floating_point())


def test_another_baseline_section_does_not_continue_a_run(tmp_path) -> None:
    recipe, spec = tiny("prior", "training.epochs=1")
    fit_baseline(recipe, spec, tmp_path, images=images(), device="cpu", minutes=0)
    assert load_baseline(tmp_path, "cpu").about["step"] == 1, "a run stopped early has a model too"
    other = dataclasses.replace(spec, base=16)
    with pytest.raises(RunError, match=r"another \[baseline\] section"):
        fit_baseline(recipe, other, tmp_path, images=images(), device="cpu")


def test_other_images_do_not_continue_a_run(tmp_path) -> None:
    recipe, spec = tiny("prior", "training.epochs=1")
    fit_baseline(recipe, spec, tmp_path, images=images(), device="cpu", minutes=0)
    with pytest.raises(RunError, match="begun with 32 other training images"):
        fit_baseline(recipe, spec, tmp_path, images=(make_blobs(40), None), device="cpu")


def test_a_model_keeps_the_files_it_learned_from_however_they_were_cut(tmp_path) -> None:
    """A set of different sizes is a set of windows; what is looked at later are its files."""
    windows = ImageSet(make_blobs(8).x, names=[f"{i // 2}.png@0,{4 * (i % 2)}" for i in range(8)])
    recipe, spec = tiny("prior", "training.epochs=1")
    prior = fit_baseline(recipe, spec, tmp_path / "prior", images=(windows, None), device="cpu")
    files = [f"{i}.png" for i in range(4)]
    assert load_baseline(tmp_path / "prior", "cpu").about["train_names"] == fingerprint(files)
    assert prior.recipe == recipe
    chosen = make_recipe("training.epochs=1")
    fit(chosen, tmp_path / "tree", images=(windows, None), accelerator="cpu")
    assert load(tmp_path / "tree", "cpu").about["train_names"] == fingerprint(files)


def watch_validation(monkeypatch) -> list[tuple[int, ...]]:
    """The shapes of what is validated; every model is as good as the one before."""
    seen = []

    def validate(self, x, y, seed) -> dict[str, float]:
        seen.append(tuple(x.shape))
        return {"val_loss": 1.0}

    monkeypatch.setattr(DiffusionLearner, "validate", validate)
    return seen


def test_images_repeat_and_windows_are_validated_as_in_a_tree_s_training(tmp_path, monkeypatch):
    seen = watch_validation(monkeypatch)
    changes = "training.epochs=2", "data.repeat=3", "data.patch=4", "measurement.kind=denoise"
    recipe, spec = tiny("prior", *changes, "baseline.log_every=12")
    fit_baseline(recipe, spec, tmp_path, images=images(), device="cpu")
    assert [line["epoch"] for line in read_log(tmp_path / "log.jsonl")] == [1, 2]
    assert seen == [(16 * 4, 1, 4, 4)] * 2


def test_a_plateau_lowers_the_rate_and_is_remembered(tmp_path, monkeypatch) -> None:
    watch_validation(monkeypatch)
    changes = "optimizer.schedule=plateau", "optimizer.patience=1", "optimizer.min_lr=1e-5"
    recipe, spec = tiny("prior", "training.epochs=3", "baseline.log_every=2", *changes)
    expected = [2e-3, 2e-3, 2e-3, 2e-4, 2e-4, 2e-5]
    for calls, minutes in ((1, math.inf), (12, 0)):
        folder = tmp_path / str(calls)
        for _ in range(calls):
            fit_baseline(recipe, spec, folder, images=images(), device="cpu", minutes=minutes)
        rates = [line["lr"] for line in read_log(folder / "log.jsonl")]
        assert rates == pytest.approx(expected)


def test_what_a_baseline_cannot_do_is_refused(tmp_path) -> None:
    with pytest.raises(RecipeError, match="is 'sgd'; baselines learn with 'adam'"):
        tiny("prior", "optimizer.name=sgd")
    recipe, spec = tiny("rcgan", "training.epochs=1")
    with pytest.raises(RunError, match=r"held-out images .* set data\.validation above 0"):
        fit_baseline(recipe, spec, tmp_path, images=(make_blobs(8), None), device="cpu")


def test_the_average_forgets_the_first_weights() -> None:
    """The half-life is a twentieth of what was seen, and never more than half a million images."""
    for step in (0, 100, 1000):
        half_life = 0.05 * (step + 1)  # in batches
        assert average_share(step, 8) == pytest.approx(1 - 0.5 ** (1 / half_life), rel=1e-9)
    assert average_share(0, 8) > 0.99
    assert average_share(10**9, 250) == pytest.approx(1 - 0.5 ** (1 / 2000))


def test_training_ends_when_held_out_images_get_no_better(tmp_path) -> None:
    """With next to no rate the second line is as good as the first, and the third the last."""
    changes = "training.epochs=9", "baseline.log_every=2", "baseline.patience=2"
    recipe, spec = tiny("prior", *changes, "optimizer.lr=1e-50", "optimizer.min_lr=0.0")
    for _ in range(2):  # again: a run that ended does not go on
        fit_baseline(recipe, spec, tmp_path, images=images(), device="cpu")
        assert [line["step"] for line in read_log(tmp_path / "log.jsonl")] == [2, 4, 6]
    endless = dataclasses.replace(spec, patience=0)
    fit_baseline(recipe, endless, tmp_path / "b", images=images(), device="cpu")
    assert len(read_log(tmp_path / "b" / "log.jsonl")) == 18


@pytest.mark.parametrize("target", ["noise", "edm"])
def test_what_is_learned_gives_the_clean_image_back(target: str) -> None:
    """x0 = k x_t + g F(c x_t) for the F that training asks for, at every level."""
    recipe, spec = tiny("prior", f"baseline.target={target}")
    learner = DiffusionLearner(DiffusionModel(1, spec, []), [], recipe, torch.device("cpu"))
    x = torch.rand(500, 1, 8, 8, generator=seeded(), dtype=torch.float64)
    shrunk, t, learned = learner.draw(x, None, seeded(1))
    keep, gain, shrink = (
        scale.reshape(-1, 1, 1, 1) for scale in learner.model.scales(learner.model.alpha_bar[t])
    )
    back = keep * shrunk / shrink + gain * learned
    torch.testing.assert_close(back, 2 * x - 1, rtol=0, atol=1e-9)


def test_edm_scales_are_those_of_the_paper() -> None:
    """D(x̄; σ) = c_skip x̄ + c_out F(c_in x̄) with x̄ = x_t / √ᾱ; the target has unit variance."""
    _, spec = tiny("prior", "baseline.target=edm", "baseline.sigma_data=0.7")
    model = DiffusionModel(1, spec, [])
    alpha = model.alpha_bar
    keep, gain, shrink = model.scales(alpha)
    sigma, total = ((1 - alpha) / alpha).sqrt(), (1 - alpha) / alpha + 0.49
    torch.testing.assert_close(keep * alpha.sqrt(), 0.49 / total)
    torch.testing.assert_close(gain, 0.7 * sigma / total.sqrt())
    torch.testing.assert_close(shrink * alpha.sqrt(), 1 / total.sqrt())
    noise, clean = (1 - keep * alpha.sqrt()) / gain, keep * (1 - alpha).sqrt() / gain
    torch.testing.assert_close(0.49 * noise**2 + clean**2, torch.ones_like(alpha))


def test_edm_trains_at_the_noise_it_is_told() -> None:
    _, spec = tiny("prior", "baseline.target=edm", "baseline.log_sigma=[0.5, 1.2]")
    model = DiffusionModel(1, spec, [])
    alpha = model.alpha_bar[model.draw_levels(40_000, seeded())]
    found = ((1 - alpha) / alpha).log() / 2
    assert found.mean().item() == pytest.approx(0.5, abs=0.03)
    assert found.std().item() == pytest.approx(1.2, abs=0.03)
    with pytest.raises(RecipeError, match=r"baseline\.log_sigma"):
        tiny("prior", "baseline.log_sigma=[0.5, 0]")


def test_models_are_saved_in_half_the_bytes_and_come_back(tmp_path) -> None:
    baseline = random_baseline("conditional")
    file = tmp_path / "model.safetensors"
    save_baseline(file, baseline, {"commit": "abc"})
    again = load_baseline(file, "cpu")
    assert again.spec == baseline.spec
    assert again.recipe == baseline.recipe
    assert again.about == {"commit": "abc"}
    tensors, _ = store.read(file)
    assert {t.dtype for t in tensors.values()} == {torch.bfloat16}
    for name, weight in baseline.network.state_dict().items():
        torch.testing.assert_close(
            again.network.state_dict()[name], weight.bfloat16().float(), rtol=0, atol=0
        )


def test_the_spread_reward_is_unbiased_for_gaussian_samples() -> None:
    samples = 0.3 * torch.randn(2, 200_000, dtype=torch.float64, generator=seeded())
    p, mean = 2, samples.mean(dim=0)
    estimate = math.sqrt(math.pi / (2 * p * (p - 1))) * (samples - mean).abs().sum(dim=0).mean()
    assert estimate.item() == pytest.approx(0.3, rel=0.01)


def test_what_compiling_a_gan_replaces_is_what_makes_its_samples() -> None:
    baseline, seen = random_baseline("cgan"), []

    def compiled(inputs: torch.Tensor) -> torch.Tensor:
        seen.append(inputs.shape)
        return torch.zeros(len(inputs), 1, *inputs.shape[2:])

    baseline.model._compiled_call_impl = compiled  # what `Module.compile` sets
    samples = baseline.model.sample(Inpaint(HOLE), torch.zeros(2, 1, 8, 8), 3, seeded())
    assert seen == [(6, 3, 16, 16)]
    assert samples.shape == (2, 3, 1, 8, 8)


def test_rcgan_steers_its_spread_by_the_averaging_law() -> None:
    """Samples without spread gain nothing from averaging: the reward must grow."""
    recipe, spec = tiny("rcgan")
    measurement = Inpaint(HOLE)
    learner = RcGanLearner(
        GanModel(1, spec, [measurement]), [measurement], recipe, torch.device("cpu")
    )
    x, _ = make_blobs(16).batch(range(16))
    torch.nn.init.zeros_(learner.network.to_image.weight)
    line = learner.validate(x, None, 0)
    assert line["psnr_8"] == pytest.approx(line["psnr_1"], abs=1e-4)
    assert line["control"] == pytest.approx(1 + 0.02 * 2.5, abs=1e-4)
    assert line["val_loss"] > 1000


def test_recipes_of_baselines_are_read_and_checked(tmp_path) -> None:
    recipe, spec = tiny("prior", "baseline.base=16", "seed=9")
    assert (spec.base, recipe.seed, spec.kind) == (16, 9, "prior")
    also = RECIPE + '[baseline]\nalso = [{ kind = "downsample", factor = 2 }]\n'
    recipe, spec = parse_baseline(also)
    assert spec.also[0].factor == 2
    assert spec_from_facts(json.loads(json.dumps(spec_to_facts(spec))), "a file") == spec
    assert [type(m) for m in Baseline(recipe, spec).measurements] == [Inpaint, Downsample]
    with pytest.raises(RecipeError, match=r"has no section \[baseline\]"):
        parse_baseline(RECIPE)
    with pytest.raises(RecipeError, match=r"unknown key 'baseline.bass'; did you mean"):
        parse_baseline(RECIPE + "[baseline]\nbass = 4\n")
    with pytest.raises(RecipeError, match=r"baseline\.kind is 'mat'; choose one of"):
        tiny("mat")
    with pytest.raises(RecipeError, match=r"target is 'v'; choose one of 'noise', 'edm'"):
        tiny("prior", "baseline.target=v")
    with pytest.raises(RecipeError, match="patience is -1; it must be at least 0"):
        tiny("prior", "baseline.patience=-1")
    with pytest.raises(RecipeError, match="base is 0; it must be at least 1"):
        tiny("prior", "baseline.base=0")
    with pytest.raises(RecipeError, match="there is no recipe"):
        read_baseline(tmp_path / "none.toml")
    with pytest.raises(RecipeError, match="can only join inpaint, colorize and downsample"):
        Baseline(*parse_baseline(RECIPE + '[baseline]\nalso = [{ kind = "denoise" }]\n'))


@pytest.mark.parametrize(
    "change", ["network.width=9", "training.precision=32-true", "tree.depth=1"]
)
def test_a_change_that_would_change_nothing_of_a_baseline_is_refused(change: str) -> None:
    with pytest.raises(RecipeError, match=f"--set {change}: .* changes nothing of a baseline"):
        tiny("prior", change)
    tiny("prior", "training.epochs=1", "optimizer.lr=1e-3", "baseline.width=9")


def test_what_is_for_trees_are_keys_of_a_recipe() -> None:
    for key in FOR_TREES:
        operator.attrgetter(key)(make_recipe())


@pytest.mark.parametrize("file", sorted(RECIPES.glob("*.toml")), ids=lambda file: file.stem)
def test_every_committed_recipe_is_a_model_small_enough_to_ship(file: Path) -> None:
    recipe, spec = read_baseline(file)
    measurements = build_measurements(recipe, spec)
    with torch.device("meta"):
        make = GanModel if spec.kind.endswith("gan") else DiffusionModel
        network = make(recipe.data.channels, spec, measurements).network
    assert sum(p.numel() for p in network.parameters()) < 30e6
    assert file.stem in file.read_text().split("--out")[1]


def test_wrong_uses_of_a_model_are_named(tmp_path) -> None:
    prior, conditional = random_baseline("prior"), random_baseline("conditional")
    measurement = prior.measurements[0]
    y = torch.zeros(1, 1, 8, 8)
    with pytest.raises(ValueError, match="a prior model cannot sample by 'conditional'"):
        prior.sample(measurement, y, 1, method="conditional")
    with pytest.raises(ValueError, match="ddnm has no option 'step'; it has steps, eta"):
        prior.sample(measurement, y, 1, method="ddnm", step=3)
    with pytest.raises(ValueError, match="conditional model was not trained for this measurement"):
        conditional.sample(Inpaint(HOLE.flip(0)), y, 1)
    for trained, other in ((Downsample(2), Downsample(4)), (Denoise(0.1), Denoise(0.2))):
        conditional.measurements = [trained]
        conditional._check_trained_for(trained)
        with pytest.raises(ValueError, match="was not trained for this measurement"):
            conditional._check_trained_for(other)
    with pytest.raises(ValueError, match="this diffusion model is conditional"):
        ImageDenoiser(conditional.model)(y, 3)
    with pytest.raises(ValueError, match="is a prior and cannot see the measurement"):
        ImageDenoiser(prior.model).given(measurement, y)
    store.write(tmp_path / "tree.safetensors", {"a": y}, {"model": 1})
    with pytest.raises(ModelError, match="not a baseline's model"):
        load_baseline(tmp_path / "tree.safetensors")


def test_a_denoiser_trained_for_seconds_knows_what_coordinate_1_says() -> None:
    """An untrained one, which is the best linear one, is off by 0.60, 0.28 and 0.42."""
    plan = learned.Plan(steps=1500, batch=256, samples=2000, chain=60)
    model, facts = learned.train_denoiser("conditional", plan)
    assert facts["steps"] == 1500
    checks = learned.check_conditional(model, plan)
    assert [check["x1"] for check in checks] == pytest.approx([0.0, -0.6354, -0.5446], abs=1e-4)
    assert checks[0]["w1"]["value"] < 0.15
    assert checks[0]["tv"]["value"] < 0.1
    assert max(check["w1"]["value"] for check in checks) < 0.27


def test_the_denoiser_of_the_mixture_is_the_averaged_one(monkeypatch) -> None:
    monkeypatch.setattr(learned, "average_share", lambda step, batch: 0.0)
    model, _ = learned.train_denoiser("prior", learned.Plan(steps=3, batch=8))
    torch.manual_seed(0)
    first = learned.PointNetwork(1)
    assert torch.equal(model.network.layers[0].weight, first.layers[0].weight)


def test_checks_of_a_denoiser_can_fail() -> None:
    """A denoiser that knows nothing is no good in any of the four checks."""
    plan = learned.Plan(steps=1, batch=8, samples=500, chain=20)
    result = learned.run_checks(plan)
    passed = {}
    for check in result["checks"]:
        passed.setdefault(check["check"], []).append(check["passed"])
    assert list(passed) == ["denoiser", "prior", "denoising", "conditional"]
    assert [len(verdicts) for verdicts in passed.values()] == [5, 1, 4, 3]
    assert not result["passed"]
    assert not any(all(verdicts) for verdicts in passed.values())


@pytest.mark.slow
def test_a_denoiser_trained_for_minutes_passes_the_checks() -> None:
    result = learned.run_checks(dataclasses.replace(learned.Plan(), seed=1))
    assert result["passed"], [check for check in result["checks"] if not check["passed"]]


def test_the_committed_checks_passed() -> None:
    file = Path(__file__).parents[1] / "results" / "baselines" / "numbers.json"
    result = json.loads(file.read_text())["trained_mixture"]
    assert result["passed"]
    for check in result["checks"]:
        for key in {"rmse", "tv", "energy", "w1"} & check.keys():
            assert check[key]["value"] <= check[key]["limit"]


@pytest.mark.slow
def test_a_trained_conditional_model_knows_both_answers(tmp_path) -> None:
    """Blobs left or right are equally likely: half of the samples of every y show each."""
    schedule = ("training.epochs=40", "training.batch_size=64", "optimizer.schedule=cosine")
    recipe, spec = tiny("conditional", *schedule, "optimizer.lr=1e-3", "baseline.base=32")
    baseline = fit_baseline(recipe, spec, tmp_path, images=(make_blobs(512), None), device="cpu")
    x, _ = make_blobs(16, seed=1).batch(range(16))
    measurement = baseline.measurements[0]
    samples, _ = baseline.sample(measurement, measurement(x), 50, generator=seeded(), steps=50)
    left, right = (samples[:, :, 0, 1:4, c : c + 3].mean(dim=(2, 3)) for c in (0, 4))
    assert (left > right).float().mean().item() == pytest.approx(0.5, abs=0.15)
    assert ((left - right).abs() > 0.3).float().mean() > 0.9


@pytest.mark.gpu
def test_a_recorded_step_trains_as_a_plain_one(tmp_path, monkeypatch) -> None:
    losses = []
    for capture in ("true", "false"):
        if capture == "false":
            monkeypatch.setattr("posterior_trees_paper.baselines.train.Capture", lambda f: f)
        recipe, spec = tiny("conditional", "training.epochs=10")
        fit_baseline(recipe, spec, tmp_path / capture, images=images(), device="cuda")
        losses.append(read_log(tmp_path / capture / "log.jsonl")[-1]["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=0.1)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["conditional", "rcgan"])
def test_a_run_stopped_on_a_gpu_continues(tmp_path, kind: str) -> None:
    """Fused optimisers want their moments in the order of the weights, which have channels last."""
    recipe, spec = tiny(kind, "training.epochs=2", "baseline.log_every=2")
    fit_baseline(recipe, spec, tmp_path / "whole", images=images(), device="cuda")
    for _ in range(8):
        fit_baseline(recipe, spec, tmp_path / "cut", images=images(), device="cuda", minutes=0)
    logs = [read_log(tmp_path / name / "log.jsonl") for name in ("whole", "cut")]
    assert [line["step"] for line in logs[0]] == [line["step"] for line in logs[1]]
    for one, other in zip(*logs, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=0.1)


def test_noise_to_be_removed_is_given_in_the_scale_of_samples(monkeypatch) -> None:
    """Images in [0, 1] are twice as far apart in [-1, 1], and so is their noise."""
    asked = []

    def remember(denoise, measurement, y, n, *, generator=None, clip=None):
        asked.append(measurement.sigma)
        return torch.zeros(len(y), n, 1, 8, 8)

    monkeypatch.setitem(sampling.SAMPLERS, "denoising", remember)
    baseline = random_baseline("prior")
    baseline.measurements = [Denoise(0.1)]
    baseline.sample(Denoise(0.1), torch.zeros(1, 1, 8, 8), 2)
    assert asked == pytest.approx([0.2])
