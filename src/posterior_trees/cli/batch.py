"""Options of a batch of fields: who does it, which part of it, and what is said meanwhile; heavy
imports inside."""

import argparse
import re
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from posterior_trees.cli.options import count
from posterior_trees.errors import InputError

if TYPE_CHECKING:
    from posterior_trees.engine import Engine
    from posterior_trees.imaging.fields import Field


def add_batch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=count, metavar="N", help="processes, with a thread each "
                        "[1, or one for each of several GPUs]")  # fmt: skip
    parser.add_argument("--threads", type=count, metavar="T", help="threads of each process; other "
                        "numbers give other last bits [1; all cores for pages alone]")  # fmt: skip
    parser.add_argument("--engine", choices=("local", "dask"), default="local",
                        help="whose processes [local]")  # fmt: skip
    parser.add_argument("--scheduler", metavar="FILE|ADDRESS", help="of a Dask cluster that runs "
                        "[one on this computer]")  # fmt: skip
    parser.add_argument("--array", type=array, metavar="I/N", default=(0, 1), help="only every "
                        "N-th field, from the I-th: for N jobs with one --out")  # fmt: skip
    parser.add_argument("--progress", choices=("auto", "plain", "json", "none"), default="auto",
                        help="plain, json: a line for each field [auto]")  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="only say how many fields and bytes "
                        "there would be")  # fmt: skip
    parser.add_argument("--allow-mixed", action="store_true", help="go on with results of another "
                        "kind of device, torch or number of threads")  # fmt: skip


def array(text: str) -> tuple[int, int]:
    """`3/8`: the third of eight parts; `0/8` is the eighth."""
    if not (found := re.fullmatch(r"(\d+)/(\d+)", text)):
        raise argparse.ArgumentTypeError(f"is {text}; write I/N, such as 3/8")
    part, parts = map(int, found.groups())
    if not 0 <= part <= parts or not parts:
        raise argparse.ArgumentTypeError(f"is {text}; I is 0 to N")
    return part, parts


def check_batch(arguments: argparse.Namespace, kind: str) -> None:
    """Refuse what contradicts itself, or the `kind` of device that is used."""
    if arguments.scheduler and arguments.engine != "dask":
        raise InputError(f"--scheduler {arguments.scheduler} is for --engine dask: add that")
    if arguments.array[1] > 1 and arguments.overwrite:
        raise InputError("--overwrite with --array would remove what other jobs do: remove "
                         f"{arguments.out} first")  # fmt: skip
    gpus = len(devices_of(arguments))
    if kind != "cpu" and arguments.engine == "local" and (arguments.workers or 1) > gpus:
        raise InputError(f"--workers is {arguments.workers}, --device names {gpus}: one worker "
                         "for each GPU (--device cuda:0,cuda:1)")  # fmt: skip


def threads_of(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    """One for whatever may be resumed by other numbers of workers."""
    import torch

    is_page = tuple(words) == ("page",) and not arguments.workers
    return arguments.threads or (torch.get_num_threads() if is_page else 1)


def devices_of(arguments: argparse.Namespace) -> list[str]:
    return str(arguments.device or "").split(",")


def open_engine(arguments: argparse.Namespace, threads: int) -> "closing[Engine]":
    from posterior_trees.engine import make_engine

    devices = devices_of(arguments)
    return closing(make_engine(
        arguments.engine, arguments.workers or len(devices), threads,
        devices=devices if len(devices) > 1 else (), scheduler=arguments.scheduler,
    ))  # fmt: skip


def watches(arguments: argparse.Namespace, fields: "Sequence[Field]") -> dict[str, Callable]:
    """What to say of fields as they end; of a single one, of its tiles."""
    from posterior_trees.progress import report, track

    if arguments.progress in ("plain", "json"):
        return {"watch": report(arguments.progress == "json", describe)}
    if arguments.progress == "none":
        return {}
    return {"watch_tiles" if len(fields) == 1 else "watch": track("predicting")}


def describe(outcome: Any) -> dict[str, Any]:
    status = "failed" if outcome.error else "done"
    return {"field": outcome.item.name, "status": status, "seconds": round(outcome.seconds, 2)}
