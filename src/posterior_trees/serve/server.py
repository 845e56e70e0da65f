"""The explorer as a local web page that takes your own pictures.

    GET  /                 the page, with the examples it was started with
    GET  /static/FILE      its style and scripts, by a fixed list of names
    GET  /blank.html       the one-file page without trees; the page fills it in to save itself
    POST /api/predict      a picture as the raw body → one example in the form of `content`
         ?name=…&invert=0&hole=N                N > 0: the last N bytes are another hole
         &clean=1                               measure it first; 0: it is the measurement
         &levels=LO,HI&gamma=1                  stored values that become black and white
         &digit=0                               1: find the handwritten digit in it
         &align=X1,Y1,X2,Y2&lines=0             cut it around these eyes; 1: find the lines in it
         &scale=1                               0.5: take it at half its size

    POST /api/grow         which branches of it are wanted (`growths`) → its tree with them

Safe by default: `guard` decides who is answered, and no path of a client's is ever opened. Bytes
are counted while they come in, pixels before they are decoded, and one thread with a short queue
does the work. Every refusal, also of an unknown path, is `{"error": "…"}`.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image

from posterior_trees.errors import need, words_for
from posterior_trees.explore.content import Measure, png_url
from posterior_trees.explore.export import SERVED, frame_content, inline_page, served_page, static
from posterior_trees.pictures.importers import describe_way
from posterior_trees.pictures.lines import takes_lines
from posterior_trees.pictures.reading import Reading
from posterior_trees.predictor import Predictor
from posterior_trees.serve.ask import Limits, ask, preview
from posterior_trees.serve.body import Arrivals, read_body
from posterior_trees.serve.growths import Growths
from posterior_trees.serve.guard import Guard, RefusedError, allowed_hosts, refusal
from posterior_trees.serve.worker import Worker

if TYPE_CHECKING:
    from fastapi import FastAPI

TYPES = {".js": "text/javascript", ".css": "text/css"}
MAX_NAME = 80
ASKED = 1.0
"""Megabytes of what may be asked about a tree, a painted region with it."""
SMALL = 64
"""Grey pictures up to this side can be drawn by hand."""
AGAIN = {"Retry-After": "2"}
LEFT = 499
"""The status of an answer that nobody waits for: the client left."""


def make_app(
    predictor: Predictor,
    *,
    examples: Sequence[Mapping[str, Any]] = (),
    host: str = "127.0.0.1",
    title: str = "Posterior trees",
    model_card: Mapping[str, object] | None = None,
    measures: Mapping[str, Measure] | None = None,
    reading: Reading | None = None,
    limits: Limits | None = None,
    growths: Growths | None = None,
    room: int = 64,
) -> "FastAPI":
    """The web application of one model; `examples` (of `describe_trees`) are there from the start,
    `host` is the name it will be reached by, `reading` what the page proposes for files."""
    fastapi = need("fastapi", "the explorer's server", "explore")
    limits = limits or Limits()
    size = predictor.measurement.size or (examples[0]["size"] if examples else (1, 1))
    frame = frame_content(predictor.branching, size, title, model_card)
    server = describe_server(predictor, limits, reading or Reading())
    first = frame | {"examples": list(examples), "server": server}
    growths = growths or Growths(predictor, measures)
    explorer = Explorer(predictor, measures, limits, growths, Worker(room))

    @asynccontextmanager
    async def lifespan(_):
        yield
        explorer.worker.close()

    app = fastapi.FastAPI(title=title, lifespan=lifespan, docs_url=None, redoc_url=None,
                          openapi_url=None)  # fmt: skip
    app.state.worker = explorer.worker
    app.add_middleware(Guard, hosts=allowed_hosts(host))
    app.add_exception_handler(404, explorer.unknown)
    app.add_exception_handler(405, explorer.unknown)
    app.add_exception_handler(500, explorer.failed)
    for path, page in fixed_pages(frame, first).items():
        app.add_route(path, always(page), methods=["GET"])
    app.add_route("/api/predict", explorer.predict, methods=["POST"])
    app.add_route("/api/preview", explorer.preview, methods=["POST"])
    app.add_route("/api/grow", explorer.grow, methods=["POST"])
    return app


def fixed_pages(frame: dict, first: dict) -> dict[str, Any]:
    """What is answered at each path, whoever asks."""
    from fastapi.responses import HTMLResponse, Response

    pages = {"/": HTMLResponse(served_page(first)), "/blank.html": HTMLResponse(inline_page(frame))}
    for file in SERVED:
        kind = TYPES[file[file.rindex(".") :]]
        pages[f"/static/{file}"] = Response(static(file), media_type=kind)
    return pages | {"/static/{file}": refusal(404, "there is no such file")}


def always(response: Any) -> Callable[[Any], Awaitable[Any]]:
    async def answer(_: Any) -> Any:
        return response

    return answer


@dataclass
class Explorer:
    """The answers to the requests; each method takes a request and gives a response."""

    predictor: Predictor
    measures: Mapping[str, Measure] | None
    limits: Limits
    growths: Growths
    worker: Worker
    arrivals: Arrivals = field(default_factory=Arrivals)

    async def unknown(self, request: Any, error: Any) -> Any:
        path, method = request.url.path[:MAX_NAME], request.method
        words = {404: f"there is nothing at {path}", 405: f"{path} does not take {method} requests"}
        return refusal(error.status_code, words[error.status_code], error.headers)

    async def failed(self, _: Any, error: Exception) -> Any:
        reason = f"the explorer itself failed ({type(error).__name__}): its terminal says where"
        return refusal(500, reason)

    async def predict(self, request: Any) -> Any:
        return await self.answer(request, self.limits.megabytes, self.describe)

    async def preview(self, request: Any) -> Any:
        return await self.answer(request, self.limits.megabytes, self.describe_picture)

    async def grow(self, request: Any) -> Any:
        return await self.answer(request, ASKED, self.describe_growth)

    async def answer(
        self, request: Any, megabytes: float, describe: Callable[[bytes, Mapping[str, str]], str]
    ) -> Any:
        from fastapi.responses import Response
        from starlette.requests import ClientDisconnect

        try:
            with self.arrivals.counted() as take:
                content = await read_body(request, megabytes, take)
                async with self.worker.place():
                    if await request.is_disconnected():
                        return Response(status_code=LEFT)
                    made = await self.worker.run(describe, content, dict(request.query_params))
            return Response(made, media_type="application/json")
        except ClientDisconnect:
            return Response(status_code=LEFT)
        except asyncio.CancelledError:
            return refusal(503, "the explorer was stopped")
        except RefusedError as error:
            return refusal(error.status, str(error), AGAIN if error.status == 503 else None)
        except Exception as error:
            if not (words := words_for(error)):
                raise
            return refusal(422, words)

    def describe(self, content: bytes, query: Mapping[str, str]) -> str:
        """The tree of a picture as JSON; runs in the worker's thread."""
        name = name_of(query)
        content, hole = split_body(content, query.get("hole", "0"))
        reading = read_query(query)
        made = ask(self.predictor, content, name, reading, hole, self.limits)
        kept = self.growths.keep(made) if hole is None else {}
        return json.dumps(made.describe(name, measures=self.measures) | kept)

    def describe_picture(self, content: bytes, query: Mapping[str, str]) -> str:
        """The picture itself, as JSON; runs in the worker's thread."""
        done = read_query(query).adjustment
        return json.dumps(preview(content, name_of(query), done, self.limits))

    def describe_growth(self, content: bytes, _: Mapping[str, str]) -> str:
        """A tree that was grown, as JSON; runs in the worker's thread."""
        return json.dumps(self.growths.grow(content.decode("utf-8", "replace")))


def name_of(query: Mapping[str, str]) -> str:
    return query.get("name", "").strip()[:MAX_NAME] or "your picture"


def split_body(content: bytes, count: str) -> tuple[bytes, bytes | None]:
    """A picture, and after it the `count` bytes of its hole if there are any."""
    if not (count.isascii() and count.isdigit() and len(count) < 12 and int(count) <= len(content)):
        raise RefusedError(422, f"hole={count[:20]}: give the number of its bytes in the body")
    picture = len(content) - int(count)
    return content[:picture], content[picture:] or None


def read_query(query: Mapping[str, str]) -> Reading:
    """What a client wants done to a picture."""
    try:
        levels, eyes = (
            [float(part) for part in query.get(key, "").split(",") if part.strip()]
            for key in ("levels", "align")
        )
        gamma = float(query.get("gamma") or 1)
    except ValueError:
        words = "levels are two numbers LO,HI, gamma is one, and align has four: X1,Y1,X2,Y2"
        raise RefusedError(422, words) from None
    try:
        scale = float(query.get("scale") or 1)
    except ValueError:
        raise RefusedError(422, "the scale is one number, 0.5 for half the size") from None
    return Reading.of(
        resize=query.get("resize") == "1", digit=query.get("digit") == "1",
        align=eyes or None, lines=query.get("lines") == "1", scale=scale,
        levels=levels or None, gamma=gamma, invert=query.get("invert") == "1",
        is_clean={"0": False, "1": True}.get(query.get("clean")),
    )._replace(is_cut=query.get("cut") == "1")  # fmt: skip


def describe_server(predictor: Predictor, limits: Limits, proposed: Reading) -> dict:
    """What the page needs to know to ask for trees of new pictures; `scale` is null where the model
    takes one size."""
    measurement, adjustment = predictor.measurement, proposed.adjustment
    is_clean = measurement.is_picture_clean if proposed.is_clean is None else proposed.is_clean
    return {
        "megabytes": limits.megabytes,
        "action": measurement.action if measurement.is_computable else None,
        "clean": is_clean,
        "paper": describe_paper(predictor),
        "levels": adjustment.levels,
        "gamma": adjustment.gamma,
        "invert": adjustment.is_inverted,
        **describe_way(predictor, proposed.importer),
        "size": measurement.size or None,
        "resize": proposed.resize,
        "scale": None if measurement.size else proposed.scale,
    }


def describe_paper(predictor: Predictor) -> dict | None:
    """What the page needs to show a picture with its hole: the size, the model's own hole, and
    whether pictures of this kind can be drawn, with which `ink`. Drawings of lines have no hole.
    None where there is nothing to hide or to draw."""
    measurement = predictor.measurement
    if takes_lines(predictor):
        size = list(predictor.about["frame"]["size"])
        return {"size": size, "hole": None, "can_draw": True, "ink": "black"}
    if measurement.hole is None or measurement.hole.ndim < 2:
        return None
    size = measurement.hole.shape[-2:]
    hidden = measurement.hole.reshape(size).cpu().to(torch.uint8) * 255
    return {
        "size": list(size),
        "hole": png_url(Image.fromarray(hidden.numpy())),
        "can_draw": max(size) <= SMALL and predictor.channels == 1,
        "ink": "white",
    }
