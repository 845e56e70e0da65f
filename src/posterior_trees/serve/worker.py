"""One thread that does all the work, and a short queue before it.

Fifty people may press the button at once: the first `room` of them wait their turn, the others are
told to come back, and the page itself keeps being served because nothing heavy runs beside it.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from posterior_trees.errors import InputError, PosteriorTreesError


class FullError(PosteriorTreesError):
    """All places of the queue are taken."""


class Worker:
    """Runs functions one after the other; at most `room` of them are running or waiting."""

    def __init__(self, room: int = 16) -> None:
        if room < 1:
            raise InputError(f"the queue has room for {room}; it needs at least 1")
        self.room, self.taken = room, 0
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tree")

    @asynccontextmanager
    async def place(self) -> AsyncGenerator[None]:
        """A place in the queue, taken before the upload is read, so that waiting uploads never
        need more memory than `room` of them."""
        if self.taken >= self.room:
            raise FullError(
                f"{self.taken} pictures are waiting, which is the limit: try again in a moment"
            )
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
