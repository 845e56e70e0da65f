"""Models on a hub: `hf://owner/name[@revision]`, fetched once and kept, or pushed with their card.

Only safetensors are ever read: what a hub hands out is numbers and text, and no code of it runs. A
file is checked like any other model (`store` verifies its checksum) before it is used.
"""

import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import NamedTuple

from posterior_trees.errors import ModelError, need

SCHEME = "hf://"
FILE = "model.safetensors"
README = "README.md"
LIBRARY = "posterior-trees"
PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9])?"
ADDRESS = re.compile(rf"{SCHEME}({PART}/{PART})(?:@([\w./-]{{1,100}}))?")


class Address(NamedTuple):
    """Where a model lies on the hub; without a revision it is the newest."""

    repository: str
    revision: str | None

    def __str__(self) -> str:
        return SCHEME + self.repository + (f"@{self.revision}" if self.revision else "")


def read_address(text: str) -> Address:
    """The parts of `hf://owner/name[@revision]`."""
    if not (found := ADDRESS.fullmatch(text)):
        raise ModelError(f"{text!r} is no address on the hub: write hf://owner/name[@revision]")
    return Address(found[1], found[2])


def fetch(text: str) -> Path:
    """The file of a model on the hub; fetched the first time, or when it is a newer one."""
    address, hub = read_address(text), need("huggingface_hub", "a model on a hub", "hub")
    with _explained(address):
        return Path(hub.hf_hub_download(
            address.repository, FILE, revision=address.revision, library_name=LIBRARY,
            cache_dir=os.environ.get("HF_HUB_CACHE"), endpoint=os.environ.get("HF_ENDPOINT"),
        ))  # fmt: skip


def push(file: str | PathLike[str], text: str, card: str) -> str:
    """Put a model and its card on the hub, both or neither; gives the address of what is there."""
    address, hub = read_address(text), need("huggingface_hub", "a model on a hub", "hub")
    if address.revision:
        raise ModelError(
            f"{text} names a revision: the hub makes the next one itself, leave it out"
        )
    api = hub.HfApi(endpoint=os.environ.get("HF_ENDPOINT"), library_name=LIBRARY)
    contents = {FILE: str(file), README: card.encode()}
    parts = [hub.CommitOperationAdd(name, content) for name, content in contents.items()]
    with _explained(address):
        api.create_repo(address.repository, exist_ok=True)
        message = f"Upload {Path(file).name}"
        done = api.create_commit(address.repository, parts, commit_message=message)
    return str(address._replace(revision=done.oid))


@contextmanager
def _explained(address: Address) -> Generator[None, None, None]:
    """The hub's refusals in words that say what to do."""
    from huggingface_hub import errors

    try:
        yield
        return
    except errors.GatedRepoError:
        fix = "its owner must let you in: ask on its page, then log in (hf auth login)"
    except errors.RepositoryNotFoundError:
        fix = "there is no such model, or it is private: check the name, or log in (hf auth login)"
    except errors.RevisionNotFoundError:
        fix = f"it has no revision {address.revision!r}: leave it out for the newest"
    except errors.RemoteEntryNotFoundError:
        fix = f"it holds no {FILE}, so it is not a model of posterior-trees"
    except errors.LocalEntryNotFoundError as error:
        fix = (
            "it was not fetched before, and the hub cannot be reached (offline, or HF_HUB_OFFLINE "
            f"is set): {_cause(error)}"
        )
    except Exception as error:  # of whichever library it asks the hub through
        status = getattr(getattr(error, "response", None), "status_code", None)
        fix = f"the hub failed: {_cause(error)}. Try again later, or give a file"
        if status in (401, 403):
            fix = "the hub wants to know who asks: log in (hf auth login), or set HF_TOKEN"
    raise ModelError(f"{address}: {fix}")


def _cause(error: BaseException) -> str:
    """The first line of the first error of a chain."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).strip().partition("\n")[0] or type(error).__name__
