"""Fetching MNIST from its public mirrors, checked against the checksums of its contents.

A file counts only if its unpacked contents have the right SHA-256, so that any packing of the
original bytes passes. It is written under a temporary name and renamed: an interrupted download
leaves nothing half done, and running the command again fetches only what is missing.
"""

import gzip
import hashlib
import urllib.request
import zlib
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from io import BufferedReader, BytesIO
from os import PathLike
from pathlib import Path

from rich.console import Console
from rich.progress import wrap_file

from posterior_trees.data.idx import unpacked
from posterior_trees.errors import DataError
from posterior_trees.store import make_folder_of, write_bytes

MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
MNIST_SHA256 = {
    "train-images-idx3": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
"""Of the unpacked contents of `<key>-ubyte.gz`."""

TIMEOUT_SECONDS = 30
MOST = 2**30
"""Bytes that are unpacked; no file has so many."""


def download(
    name: str,
    folder: str | PathLike[str],
    mirrors: Sequence[str] = MIRRORS,
    checksums: Mapping[str, str] = MNIST_SHA256,
) -> list[Path]:
    """Fetch what is missing of a set into `folder/name`; the files that were fetched."""
    if name != "mnist":
        raise DataError(
            f"{name!r} cannot be downloaded, only 'mnist' can: the owners of the other sets want "
            "to be asked. docs/data.md says how to obtain them"
        )
    target = Path(folder) / name
    fetched = []
    for key, checksum in checksums.items():
        file = f"{key}-ubyte.gz"
        place = target / file
        if not (place.is_file() and _checksum(place.read_bytes()) == checksum):
            raw = _fetch(file, checksum, mirrors, target)
            write_bytes(make_folder_of(place), raw)
            fetched.append(place)
    return fetched


def _fetch(file: str, checksum: str, mirrors: Sequence[str], target: Path) -> bytes:
    problems = []
    for mirror in mirrors:
        url = mirror + file
        try:
            raw = _get(url, file)
        except (OSError, HTTPException) as error:
            problems.append(f"{url}: {getattr(error, 'reason', error)}")
            continue
        if _checksum(raw) == checksum:
            return raw
        problems.append(f"{url}: wrong checksum (something between here and there changed it)")
    raise DataError(
        f"{file} could not be downloaded.\n  " + "\n  ".join(problems) + "\n"
        "Without internet here, fetch the four files of either mirror on another machine and put "
        f"them into {target}/"
    )


def _get(url: str, title: str) -> bytes:
    console = Console(stderr=True)
    with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response:
        watched = wrap_file(
            response,
            total=int(response.headers.get("Content-Length") or 0),
            description=title,
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        with watched as file:
            return file.read()


def _checksum(raw: bytes) -> str:
    try:
        content = unpacked(BufferedReader(BytesIO(raw))).read(MOST)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return "damaged"
    return hashlib.sha256(content).hexdigest()
