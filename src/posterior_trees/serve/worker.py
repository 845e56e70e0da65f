"""One thread that does all the work, and a queue before it.

Fifty people may press the button at once: they are served one after the other in the order in which
their pictures were complete, those beyond `room` are told to come back, and the page itself keeps
being served because nothing heavy runs beside it.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from posterior_trees.errors import InputError
from posterior_trees.serve.guard import RefusedError


class Worker:
    """Runs functions one after the other; at most `room` of them are running or waiting."""

    def __init__(self, room: int = 64) -> None:
        if room < 1:
            raise InputError(f"the queue has room for {room}; it needs at least 1")
        self.room, self.taken, self.is_busy = room, 0, False
        self._turn = asyncio.Lock()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tree")

    @asynccontextmanager
    async def place(self) -> AsyncGenerator[None]:
        """Wait for one's turn, and have it."""
        if self.taken >= self.room:
            words = f"{self.taken} pictures are waiting, which is the limit: try again in a moment"
            raise RefusedError(503, words)
        self.taken += 1
        try:
            async with self._turn:
                yield
        finally:
            self.taken -= 1

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._do, function, *arguments)

    def _do(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self.is_busy = True  # also while nobody waits for the answer any more
        try:
            return function(*arguments)
        finally:
            self.is_busy = False

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
