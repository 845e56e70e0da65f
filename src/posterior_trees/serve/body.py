"""Uploads as they come in: bounded in size, in time and in what is held at once.

A refused upload is read to its end and forgotten: whoever is still sending could not read the
answer otherwise, because closing the connection would reset it. A place in the queue (`worker`) is
asked for only with the whole body there, so that slow senders keep nobody from being served.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, contextmanager
from typing import Any

from posterior_trees.serve.guard import RefusedError

SECONDS_IDLE = 10.0
"""An upload of which nothing came for so long is given up."""
SECONDS_TO_SEND = 60.0
"""How long an upload may take in all."""
READ_ON = 4
"""A refused upload is read to its end if it is at most so many times the largest one allowed."""
HELD = 400e6
"""Bytes of all uploads that are arriving or waiting; who comes then is told to come back."""


class Arrivals:
    """How many bytes of uploads are held."""

    def __init__(self, most: float = HELD) -> None:
        self.most, self.held = most, 0

    @contextmanager
    def counted(self) -> Any:
        """What `take` adds within is given back in the end, or where there is no room for more:
        of many that come at once some would else never be whole."""
        taken = 0

        def take(count: float | int) -> bool:
            nonlocal taken
            has_room = self.held + count <= self.most
            count = count if has_room else -taken
            self.held += count
            taken += count
            return has_room

        try:
            yield take
        finally:
            self.held -= taken


async def read_body(request: Any, megabytes: float, take: Any) -> bytes:
    """The whole body, unless it is larger than the limit, too slow, or there is no room for it."""
    most = int(megabytes * 1e6)
    too_large = RefusedError(413, f"the file is larger than {megabytes:g} MB, the limit")
    announced = request.headers.get("content-length", "0")
    if announced.isdigit() and int(announced) > READ_ON * most:
        raise too_large
    refused = too_large if announced.isdigit() and int(announced) > most else None
    content, seen = bytearray(), 0
    async with aclosing(_in_time(request.stream())) as parts:
        async for part in parts:
            seen += len(part)
            if refused is None and seen > most:
                refused = too_large
                take(math.inf)
            elif refused is None and not take(len(part)):
                refused = RefusedError(503, "many pictures are waiting: try again in a moment")
            if refused is None:
                content.extend(part)
            else:
                content.clear()
            if seen > READ_ON * most:
                break
    if refused is not None:
        raise refused
    return bytes(content)


async def _in_time(stream: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """The parts of a stream, each of which must come in time, and all of them."""
    loop = asyncio.get_running_loop()
    end = loop.time() + SECONDS_TO_SEND
    while True:
        try:
            async with asyncio.timeout(min(SECONDS_IDLE, max(0.0, end - loop.time()))):
                part = await anext(stream)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise RefusedError(
                408,
                f"the file did not arrive: nothing came for {SECONDS_IDLE:g} seconds, or it took "
                f"more than {SECONDS_TO_SEND:g}; send it again",
            ) from None
        yield part
