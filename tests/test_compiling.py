"""What the compiler is told: results stay those of plain torch, and so do types on the way back."""

import copy

import pytest
import torch
import torch._functorch.config as tracing
from torch import nn

from posterior_trees.fast.compiling import compiled, plain_way_back
from posterior_trees.training.optimize import compile_step

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


class Careful(nn.Linear):
    """A layer that stays in float32, as those of our probability head."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return super().forward(input.float()).log_softmax(dim=1)


@pytest.mark.skipif(not hasattr(tracing, "backward_pass_autocast"), reason="torch before 2.9")
def test_what_stays_in_float32_goes_back_in_float32():
    """Left alone, the compiler of torch 2.13 rounds these gradients to 8 bits."""
    torch.manual_seed(0)
    layer, gradients = Careful(12, 4), []
    maps = torch.randn(5, 12).bfloat16()
    for forward in (layer, torch.compile(layer, backend="aot_eager")):
        layer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16), plain_way_back():
            log_probs = forward(maps)
        log_probs.square().mean().backward()
        gradients.append([parameter.grad.clone() for parameter in layer.parameters()])
    for plain, found in zip(*gradients, strict=True):
        torch.testing.assert_close(found, plain, rtol=1e-5, atol=1e-7)


def test_the_compiler_keeps_its_settings_elsewhere():
    before = getattr(tracing, "backward_pass_autocast", None)
    with plain_way_back():
        pass
    assert getattr(tracing, "backward_pass_autocast", None) == before


def test_few_launches_are_the_same_numbers():
    def spread(x: torch.Tensor) -> torch.Tensor:
        shares = x.softmax(dim=1)
        centre = (shares * x).sum(dim=1, keepdim=True)
        return (shares * (x - centre).square()).sum(dim=1).log1p().mean()

    torch.manual_seed(0)
    x = torch.randn(6, 9, 40, dtype=torch.float64, requires_grad=True)
    for function in (spread, compiled(spread, has_little_data=True)):
        x.grad, before = None, x.grad
        function(x).backward()
    torch.testing.assert_close(x.grad, before)


def test_adamw_compiled_moves_weights_as_adamw_does():
    """With a rate that is read from a tensor, as a recorded step does, and changes."""
    torch.manual_seed(0)
    rate = torch.tensor(0.1, dtype=torch.float64)
    networks = [nn.Linear(5, 3, dtype=torch.float64)]
    networks.append(copy.deepcopy(networks[0]))
    plain, found = (
        torch.optim.AdamW(
            [{"params": [n.weight], "weight_decay": 0.3}, {"params": [n.bias], "weight_decay": 0}],
            lr=0.1,
        )
        for n in networks
    )
    for group in found.param_groups:
        group.update(lr=rate, capturable=True)
    compile_step(found)
    for step in range(4):
        rate.fill_(0.1 / (step + 1))
        for group in plain.param_groups:
            group["lr"] = 0.1 / (step + 1)
        for network, optimizer in zip(networks, (plain, found), strict=True):
            for number, parameter in enumerate(network.parameters()):
                parameter.grad = torch.full_like(parameter, 0.3 - 0.2 * step + number)
            optimizer.step()
    for one, other in zip(*(n.parameters() for n in networks), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)  # steps count in float32
    assert all(slot["step"] == 4 for slot in found.state.values())


def test_other_optimisers_stay_as_they_are():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1)
    compile_step(optimizer)
    assert "step" not in vars(optimizer)
