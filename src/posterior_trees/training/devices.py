"""Where a run trains: its device, its precision, and the processes that share every batch.

Each process has a part of the batch (`Feed.share`). What all must agree on is summed here, so that
they log the same numbers, draw the same conclusions, and all stop at a NaN of one of them.
"""

import os
from typing import Any

import torch
from jaxtyping import Int, Shaped
from lightning_fabric import Fabric
from torch import Tensor

from posterior_trees.errors import InputError
from posterior_trees.recipe import Recipe


def make_fabric(recipe: Recipe, accelerator: str = "auto", devices: int = 1) -> Fabric:
    """Lightning Fabric for one process or, with several devices or under torchrun, for many."""
    machines = int(os.environ.get("GROUP_WORLD_SIZE", 1))  # torchrun says how many,
    here = int(os.environ.get("LOCAL_WORLD_SIZE", devices))  # and how many processes each has
    if devices not in (1, here):
        raise InputError(
            f"--devices is {devices}, but torchrun started {here} processes here: leave --devices "
            f"out, or start torchrun with --nproc-per-node {devices}"
        )
    devices = here
    kind, _, number = accelerator.partition(":")
    precision: Any = recipe.training.precision
    if precision == "auto":
        uses_cuda = kind in ("auto", "cuda", "gpu") and torch.cuda.is_available()
        precision = "bf16-mixed" if uses_cuda and torch.cuda.is_bf16_supported() else "32-true"
    return Fabric(
        accelerator=kind,
        devices=[int(number)] if number and devices == 1 else devices,
        num_nodes=machines,
        strategy="ddp" if devices * machines > 1 else "auto",
        precision=precision,
    )


def sum_over_processes(
    fabric: Fabric, values: Shaped[Tensor, "*shape"]
) -> Shaped[Tensor, "*shape"]:
    """The sum of what every process has, in place."""
    if fabric.world_size > 1:
        torch.distributed.all_reduce(values)
    return values


def gather_leaves(fabric: Fabric, leaves: Int[Tensor, "part"]) -> Int[Tensor, "batch"]:
    """The leaves of the whole batch, in the order of its indices: what `Feed.share` dealt out."""
    rank, processes = fabric.global_rank, fabric.world_size
    if processes == 1:
        return leaves
    everyone = leaves.new_zeros(len(leaves) * processes)
    everyone[rank::processes] = leaves
    return sum_over_processes(fabric, everyone)
