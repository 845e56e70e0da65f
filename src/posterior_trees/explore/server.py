"""The explorer as a local web page that takes your own pictures.

    GET  /                 the page, with the examples it was started with
    GET  /static/FILE      its style and scripts, by a fixed list of names
    GET  /blank.html       the one-file page without trees; the page fills it in to save itself
    POST /api/predict      a picture as the raw body → one example in the form of `content`
         ?name=…&degrade=1&invert=0

Safe by default. The page is for this machine: requests whose `Host` is not one of ours are refused
(a foreign name that resolves to 127.0.0.1), and so are requests that another site's page sends
(`Origin`, `Sec-Fetch-Site`). No path of a client's is ever opened. Bytes are counted while they
come in, pixels before they are decoded, and one thread with a short queue does the work. Every
refusal is `{"error": "…"}` with words that a person can use.
"""

import asyncio
import ipaddress
import json
import socket
from collections.abc import Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import torch
from PIL import Image

from posterior_trees.explore.content import Measure, describe_trees, png_url
from posterior_trees.explore.export import (
    SERVED,
    frame_content,
    inline_page,
    served_page,
    static,
)
from posterior_trees.explore.upload import Limits, Predictor, answer, can_degrade, mask_size
from posterior_trees.explore.worker import FullError, Worker
from posterior_trees.measure import Inpaint

if TYPE_CHECKING:
    from fastapi import FastAPI

TYPES = {".js": "text/javascript", ".css": "text/css"}
LOOPBACK = ("127.0.0.1", "localhost", "::1")
MAX_NAME = 80
SECONDS_TO_SEND = 60.0
"""How long an upload may take; a place in the queue is held meanwhile."""


class RefusedError(Exception):
    """A request that is answered with a reason instead."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


def make_app(
    predictor: Predictor,
    *,
    examples: Sequence[Mapping[str, Any]] = (),
    host: str = "127.0.0.1",
    title: str = "Posterior trees",
    model_card: Mapping[str, object] | None = None,
    measures: Mapping[str, Measure] | None = None,
    limits: Limits | None = None,
    room: int = 16,
) -> "FastAPI":
    """The web application of one model; `examples` (of `describe_trees`) are there from the start,
    and `host` is the name it will be reached by."""
    fastapi = import_fastapi()
    limits = limits or Limits()
    size = mask_size(predictor) or (examples[0]["size"] if examples else (1, 1))
    frame = frame_content(predictor.branching, size, title, model_card)
    first = frame | {"examples": list(examples), "server": describe_server(predictor, limits)}
    explorer = Explorer(predictor, frame, first, measures, limits, Worker(room))

    @asynccontextmanager
    async def lifespan(_):
        yield
        explorer.worker.close()

    app = fastapi.FastAPI(title=title, lifespan=lifespan, docs_url=None, redoc_url=None,
                          openapi_url=None)  # fmt: skip
    app.add_middleware(Guard, hosts=allowed_hosts(host))
    app.add_route("/", explorer.index, methods=["GET"])
    app.add_route("/blank.html", explorer.blank, methods=["GET"])
    app.add_route("/static/{file}", explorer.asset, methods=["GET"])
    app.add_route("/api/predict", explorer.predict, methods=["POST"])
    return app


class Explorer:
    """The answers to the requests; each method takes a request and gives a response."""

    def __init__(
        self,
        predictor: Predictor,
        frame: dict,
        first: dict,
        measures: Mapping[str, Measure] | None,
        limits: Limits,
        worker: Worker,
    ) -> None:
        from fastapi.responses import HTMLResponse, Response

        self.predictor, self.measures = predictor, measures
        self.limits, self.worker = limits, worker
        self.page, self.empty = HTMLResponse(served_page(first)), HTMLResponse(inline_page(frame))
        self.files = {
            file: Response(static(file), media_type=TYPES[file[file.rindex(".") :]])
            for file in SERVED
        }

    async def index(self, _: Any) -> Any:
        return self.page

    async def blank(self, _: Any) -> Any:
        return self.empty

    async def asset(self, request: Any) -> Any:
        return self.files.get(request.path_params["file"]) or refusal(404, "there is no such file")

    async def predict(self, request: Any) -> Any:
        from fastapi.responses import Response

        query = request.query_params
        name = query.get("name", "").strip()[:MAX_NAME] or "your picture"
        degrade, invert = (query.get(key, "0") == "1" for key in ("degrade", "invert"))
        try:
            async with self.worker.place():
                content = await read_body(request, self.limits)
                made = await self.worker.run(self.describe, content, name, degrade, invert)
                return Response(made, media_type="application/json")
        except RefusedError as error:
            return refusal(error.status, error.reason)
        except FullError as error:
            return refusal(503, str(error), {"Retry-After": "2"})
        except (ValueError, RuntimeError, MemoryError, OSError) as error:
            return refusal(422, str(error) or type(error).__name__)

    def describe(self, content: bytes, name: str, degrade: bool, invert: bool) -> str:
        """The tree of a picture as JSON; runs in the worker's thread."""
        made = answer(
            self.predictor, content, name, degrade=degrade, invert=invert, limits=self.limits
        )
        (example,) = describe_trees(
            made.tree, inputs=made.y, truths=made.x, names=[name], measures=self.measures
        )
        return json.dumps(example | {"note": made.note})


async def read_body(request: Any, limits: Limits) -> bytes:
    """The body, unless it is larger than the limit or too slow; it is never read past the limit."""
    most = int(limits.megabytes * 1e6)
    too_large = RefusedError(413, f"the file is larger than {limits.megabytes:g} MB, the limit")
    announced = request.headers.get("content-length", "0")
    if announced.isdigit() and int(announced) > most:
        raise too_large
    content = bytearray()

    async def read() -> None:
        async for part in request.stream():
            content.extend(part)
            if len(content) > most:
                raise too_large

    try:
        await asyncio.wait_for(read(), SECONDS_TO_SEND)
    except TimeoutError:
        reason = f"the file did not arrive within {SECONDS_TO_SEND:.0f} seconds: send it again"
        raise RefusedError(408, reason) from None
    return bytes(content)


def describe_server(predictor: Predictor, limits: Limits) -> dict:
    """What the page needs to know to ask for trees of new pictures."""
    size = mask_size(predictor)
    is_small = bool(size) and max(size) <= 64 and predictor.channels == 1
    return {
        "megabytes": limits.megabytes,
        "can_degrade": can_degrade(predictor),
        "task": predictor.name,
        "canvas": list(size) if is_small else None,
        "hole": _draw_hole(predictor) if size else None,
    }


def _draw_hole(predictor: Predictor) -> str:
    """The mask as a picture: opaque where pixels are hidden."""
    measurement = predictor.measurement
    assert isinstance(measurement, Inpaint)
    hidden = measurement.hole.reshape(measurement.hole.shape[-2:]).cpu().to(torch.uint8) * 255
    alpha = Image.fromarray(hidden.numpy())
    return png_url(Image.merge("LA", (Image.new("L", alpha.size, 128), alpha)))


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
        host = headers.get("host", "")
        name = _host_name(host)
        if name not in self.hosts if self.hosts is not None else not _is_address(name):
            return f"this explorer does not answer to the name {name!r}: use its own address"
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return "another site's page sent this request, which the explorer refuses"
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return "another site's page sent this request, which the explorer refuses"
        return ""


def allowed_hosts(host: str) -> frozenset[str] | None:
    """The names a client may use; None for a server on all interfaces, which answers to addresses
    and to this machine's name, because only names can be made to point here by others."""
    if host in ("0.0.0.0", "::", ""):
        return None
    return frozenset({*LOOPBACK, host.lower()} if _is_loopback(host) else {host.lower()})


def _is_loopback(host: str) -> bool:
    return host.lower() == "localhost" or (
        _is_address(host) and ipaddress.ip_address(host).is_loopback
    )


def _is_address(name: str) -> bool:
    if name in ("localhost", socket.gethostname().lower()):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _host_name(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


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


def import_fastapi() -> Any:
    try:
        import fastapi
        import fastapi.responses
    except ImportError as error:
        raise RuntimeError(
            f"the explorer's server needs {error.name}, which is not installed: "
            'pip install "posterior-trees[explore]"'
        ) from None
    return fastapi
