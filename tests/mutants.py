"""Damaged and hostile files of ours, by the thousand and by a seed."""

import json
import random
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ODD: tuple[Any, ...] = (None, True, -1, 0, 3.5, 10**9, 2**70, float("nan"), "x", "", [], [1, "a"],
                        {}, {"a": 1}, [[]], -1e308)  # fmt: skip
"""Valid JSON, seldom of the right type."""


def read_header(file: Path) -> tuple[dict[str, Any], bytes]:
    """The header of a safetensors file and the bytes of its tensors."""
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def write_header(file: Path, header: dict[str, Any], values: bytes) -> None:
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write_bytes(struct.pack("<Q", len(text)) + text + values)


def facts_of(header: dict[str, Any]) -> dict[str, Any]:
    return json.loads(header["__metadata__"]["posterior_trees"])


def forge(header: dict[str, Any], facts: Any, *, with_sums: bool = False) -> dict[str, Any]:
    """The header with other facts; without checksums, as old files are, or with a right one."""
    meta = dict(header["__metadata__"]) | {"posterior_trees": json.dumps(facts)}
    sums = json.loads(meta.pop("checksums", "{}"))
    if with_sums and sums:
        sums[""] = zlib.crc32(meta["posterior_trees"].encode())
        meta["checksums"] = json.dumps(sums)
    return header | {"__metadata__": meta}


def places(value: Any, at: tuple = ()) -> Iterator[tuple]:
    """The place of everything inside nested JSON."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(pairs):
        yield (*at, key)
        if isinstance(inner, dict | list):
            yield from places(inner, (*at, key))


def mutate_facts(facts: Any, luck: random.Random) -> Any:
    """The facts with something else in one place, or without it."""
    facts = json.loads(json.dumps(facts))
    *parents, last = luck.choice(list(places(facts)))
    inside = facts
    for key in parents:
        inside = inside[key]
    if luck.random() < 0.15:
        del inside[last]
    else:
        inside[last] = luck.choice(ODD)
    return facts


def mutants(file: Path, out: Path, count: int, seed: int = 0) -> Iterator[str]:
    """Write `count` mutants of a file to `out`, one after the other; gives what was done."""
    header, values = read_header(file)
    luck = random.Random(seed)
    for _ in range(count):
        what = luck.choice(["facts", "facts", "facts", "header", "flip", "cut", "recipe"])
        if what == "facts":
            write_header(out, forge(header, mutate_facts(facts_of(header), luck),
                                    with_sums=luck.random() < 0.5), values)  # fmt: skip
        elif what == "header":
            other = mutate_facts({k: v for k, v in header.items() if k != "__metadata__"}, luck)
            write_header(out, {"__metadata__": header["__metadata__"]} | other, values)
        elif what == "flip":
            content = bytearray(file.read_bytes())
            place = luck.randrange(len(content))
            content[place] ^= 1 << luck.randrange(8)
            out.write_bytes(content)
        elif what == "cut":
            out.write_bytes(file.read_bytes()[: luck.randrange(file.stat().st_size)])
        else:
            facts = facts_of(header)
            facts["recipe"] = mutate_recipe(facts.get("recipe", "seed = 0\n"), luck)
            write_header(out, forge(header, facts), values)
        yield what


def mutate_recipe(text: str, luck: random.Random) -> str:
    """A recipe with another value, a missing line or a strange one."""
    lines = text.splitlines()
    place = luck.randrange(len(lines))
    key = lines[place].partition("=")[0]
    odd = luck.choice(["10000000000", "0", "-3", "nan", "inf", '"x"', "[]", "[1, 2, 3]", "true",
                       "1e300", "{a = 1}", "9" * 23, "", "[[1]]", "3000", "12"])  # fmt: skip
    lines[place] = luck.choice([f"{key}= {odd}", f"{key}= {odd}", "", "[x", f"{key}x = 1"])
    return "\n".join(lines)
