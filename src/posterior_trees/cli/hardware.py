"""Whether the device that a command is asked to use is there; heavy imports inside."""

import argparse

from posterior_trees.errors import InputError, MissingError

WITHOUT = "Without the option the best device there is does the work"


def check_hardware(arguments: argparse.Namespace) -> None:
    """Refuse `--device` and `--devices` that this computer cannot serve."""
    if getattr(arguments, "dry_run", False):
        return
    device, devices = getattr(arguments, "device", None) or "", getattr(arguments, "devices", 1)
    if device == "cpu" or (not device and devices == 1):
        return
    import torch

    if device.startswith("cuda") and not torch.cuda.is_available():
        why = "finds no CUDA GPU: does `nvidia-smi` list one?"
        if torch.version.cuda is None:
            why = "is a build without CUDA: install one with it from pytorch.org."
        raise MissingError(f"--device is {device}, but torch {torch.__version__} {why} {WITHOUT}")
    if device == "mps" and not torch.backends.mps.is_available():
        raise MissingError(f"--device is {device}, but torch finds no GPU of Apple's. {WITHOUT}")
    if "," in device and not hasattr(arguments, "workers"):
        raise InputError(f"--device is {device}; several are for the workers of ptrees predict")
    if devices > 1 and ":" in device:
        raise InputError(f"--device is {device}, one GPU; --devices is {devices}: leave one out")
    if 0 < (there := torch.cuda.device_count()) < devices:
        raise InputError(f"--devices is {devices}; this computer has {there} CUDA GPUs")
