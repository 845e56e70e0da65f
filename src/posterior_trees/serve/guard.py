"""Who may talk to the explorer, and how everybody else is answered.

The page is for this machine: requests whose `Host` is not one of ours are refused (a foreign name
that resolves to 127.0.0.1), and so are requests that another site's page sends (`Origin`,
`Sec-Fetch-Site`). Every refusal is `{"error": "…"}` with words that a person can use.
"""

import socket
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any
from urllib.parse import SplitResult, urlsplit

from posterior_trees.errors import PosteriorTreesError

LOOPBACK = ("127.0.0.1", "localhost", "::1")


class RefusedError(PosteriorTreesError):
    """A request that is answered with a reason instead."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Guard:
    """Refuses what is not from this page: other hosts' names, other sites' pages."""

    def __init__(self, app: Any, hosts: frozenset[str] | None) -> None:
        self.app, self.hosts = app, hosts

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
            if reason := self.objection(headers):
                await refusal(403, reason)(scope, receive, send)
                return
            send = _with_headers(send)
        await self.app(scope, receive, send)

    def objection(self, headers: Mapping[str, str]) -> str:
        host, origin = headers.get("host", ""), headers.get("origin")
        name = (_split(f"//{host}").hostname or "").lower()
        is_known = name in ("localhost", socket.gethostname().lower()) or _address(name) is not None
        if not (is_known if self.hosts is None else name in self.hosts):
            return f"this explorer does not answer to the name {name!r}: use its own address"
        is_foreign = origin is not None and _split(origin).netloc != host
        if is_foreign or headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return "another site's page sent this request, which the explorer refuses"
        return ""


def allowed_hosts(host: str) -> frozenset[str] | None:
    """The names a client may use; None for a server on all interfaces, which answers to addresses
    and to this machine's name, because only names can be made to point here by others."""
    if host in ("0.0.0.0", "::", ""):
        return None
    host, address = host.lower(), _address(host)
    is_loopback = host == "localhost" or (address is not None and address.is_loopback)
    return frozenset({*LOOPBACK, host} if is_loopback else {host})


def _address(name: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(name)
    except ValueError:
        return None


def _split(address: str) -> SplitResult:
    """The parts of an address; of what is none they are empty."""
    try:
        return urlsplit(address)
    except ValueError:
        return urlsplit("")


def _with_headers(send: Any) -> Any:
    extra = [
        (b"x-content-type-options", b"nosniff"),
        (b"x-frame-options", b"DENY"),
        (b"cross-origin-resource-policy", b"same-origin"),
        (b"referrer-policy", b"no-referrer"),
        (b"cache-control", b"no-store"),
    ]

    async def wrapped(message: dict) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *extra]
        await send(message)

    return wrapped


def refusal(status: int, reason: str, headers: dict[str, str] | None = None) -> Any:
    from fastapi.responses import JSONResponse

    return JSONResponse({"error": reason}, status_code=status, headers=headers)
