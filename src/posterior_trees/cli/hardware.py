"""Whether the device that a command is asked to use is there; heavy imports inside."""

import argparse

from posterior_trees.errors import InputError, MissingError

WITHOUT = "Without the option the best device there is does the work"


def add_accelerator(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--accelerator", choices=("auto", "cuda", "mps", "cpu"), default="auto",
                        help="where to train [auto: the best there is]")  # fmt: skip


def check_hardware(arguments: argparse.Namespace) -> None:
    """Refuse `--accelerator`, `--device` and `--devices` that this computer cannot serve."""
    if getattr(arguments, "dry_run", False):
        return
    accelerator, device = (
        getattr(arguments, "accelerator", None),
        getattr(arguments, "device", None),
    )
    for option, name in (("--accelerator", accelerator), ("--device", device)):
        if name not in (None, "auto", "cpu"):
            check_device(option, name)
    devices = getattr(arguments, "devices", 1)
    if devices > 1 and accelerator != "cpu":
        _check_count(devices)


def check_device(option: str, name: str) -> None:
    import torch

    try:
        kind = torch.device(name).type
    except RuntimeError:
        kind = ""
    if kind not in ("cuda", "mps", "cpu"):
        raise InputError(f"{option} is {name}; it is cuda, mps or cpu")
    if kind == "cuda" and not torch.cuda.is_available():
        why = "finds no CUDA GPU: does `nvidia-smi` list one?"
        if torch.version.cuda is None:
            why = "is a build without CUDA: install one with it from pytorch.org."
        raise MissingError(f"{option} is {name}, but torch {torch.__version__} {why} {WITHOUT}")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise MissingError(f"{option} is {name}, but torch finds no GPU of Apple's. {WITHOUT}")


def _check_count(devices: int) -> None:
    import torch

    there = torch.cuda.device_count()
    if 0 < there < devices:
        raise InputError(f"--devices is {devices}; this computer has {there} CUDA GPUs")
