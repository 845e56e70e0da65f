"""Serving an application on an address, to anybody who connects, until Ctrl-C.

Connections cost nothing to open, so none may stay without saying what it wants: the head of a
request must be there within `SECONDS_FOR_HEAD`, and of connections that have not said it yet only
the `WAITING` newest are kept. Bodies have deadlines of their own (`body`).
"""

import asyncio
import contextlib
import os
import socket
import sys
import threading
import webbrowser
from typing import Any

from posterior_trees.errors import InputError, need

SECONDS_FOR_HEAD = 10.0
WAITING = 128
CONNECTIONS = 512
SECONDS_TO_CLOSE = 1
"""Ctrl-C lets what is being sent end for so long."""


def serve(app: Any, host: str, port: int, is_shown: bool = True) -> None:
    """Answer requests until the user stops it; work in hand is dropped then."""
    opened = listen(host, port)
    server = make_server(app)
    shown = "127.0.0.1" if host in ("0.0.0.0", "::", "") else host
    address = f"http://{f'[{shown}]' if ':' in shown else shown}:{opened.getsockname()[1]}/"
    print(f"explorer at {address}  (stop it with Ctrl-C)", flush=True)
    if shown != host:
        print("every machine of this network can use it", file=sys.stderr, flush=True)
    if is_shown:
        timer = threading.Timer(0.8, webbrowser.open, [address])
        timer.daemon = True
        timer.start()
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[opened])
    if app.state.worker.is_busy:  # a thread cannot be ended, and would be waited for
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def make_server(app: Any) -> Any:
    """A uvicorn server that is patient with nobody."""
    uvicorn = need("uvicorn", "the explorer's server", "explore")
    settings = uvicorn.Config(
        app,
        http=impatient(),
        ws="none",
        log_level="warning",
        server_header=False,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=SECONDS_TO_CLOSE,
        limit_concurrency=CONNECTIONS,
    )
    return uvicorn.Server(settings)


def impatient() -> type[asyncio.Protocol]:
    """uvicorn's HTTP protocol with a deadline for heads."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    waiting: dict[Any, asyncio.TimerHandle] = {}

    class Impatient(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.wait()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self.heard()
            elif self not in waiting:  # the first bytes of a further request
                self.wait()

        def connection_lost(self, exc: Exception | None) -> None:
            self.heard()
            super().connection_lost(exc)

        def send_400_response(self, msg: str) -> None:
            if self.cycle is not None:  # whoever works on this request has nobody to answer
                self.cycle.disconnected = True
                self.cycle.message_event.set()
            super().send_400_response(msg)

        def wait(self) -> None:
            if len(waiting) >= WAITING:
                next(iter(waiting)).give_up()
            waiting[self] = self.loop.call_later(SECONDS_FOR_HEAD, self.give_up)

        def heard(self) -> None:
            if timer := waiting.pop(self, None):
                timer.cancel()

        def give_up(self) -> None:
            self.heard()
            self.transport.abort()

    return Impatient


def listen(host: str, port: int) -> socket.socket:
    """The opened address; port 0 takes any free one."""
    if not 0 <= port <= 65535:
        raise InputError(f"--port is {port}; ports are 0 to 65535")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        raise OSError(
            f"cannot serve at {host}:{port} ({error.strerror or error}): choose another --port "
            "(0: any free one) or --host"
        ) from error
