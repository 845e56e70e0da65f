"""Whether the device that a command is asked to use is there; heavy imports inside."""

import argparse

from posterior_trees.errors import InputError, MissingError

WITHOUT = "Without the option the best device there is does the work"


def check_hardware(arguments: argparse.Namespace) -> None:
    """Refuse `--device` and `--devices` that this computer cannot serve."""
    if getattr(arguments, "dry_run", False):
        return
    device, devices = getattr(arguments, "device", None), getattr(arguments, "devices", 1)
    if device not in (None, "cpu"):
        _check_device(device)
    if devices > 1 and device and ":" in device:
        raise InputError(f"--device is {device}, one GPU; --devices is {devices}: leave one out")
    if devices > 1 and device != "cpu":
        _check_count(devices)


def _check_device(name: str) -> None:
    import torch

    kind = name.partition(":")[0]
    if kind == "cuda" and not torch.cuda.is_available():
        why = "finds no CUDA GPU: does `nvidia-smi` list one?"
        if torch.version.cuda is None:
            why = "is a build without CUDA: install one with it from pytorch.org."
        raise MissingError(f"--device is {name}, but torch {torch.__version__} {why} {WITHOUT}")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise MissingError(f"--device is {name}, but torch finds no GPU of Apple's. {WITHOUT}")


def _check_count(devices: int) -> None:
    import torch

    there = torch.cuda.device_count()
    if 0 < there < devices:
        raise InputError(f"--devices is {devices}; this computer has {there} CUDA GPUs")
