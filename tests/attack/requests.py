"""Hostile requests to the served explorer: thousands of malformed ones, and fifty uploads at once.

A failure is an answer of 500 or above that is not 503, no answer where a whole request was sent, a
traceback in the server's terminal, or a page that is no longer served.
"""

import contextlib
import io
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

WORDS = ("name", "clean", "levels", "gamma", "invert", "digit", "scale", "hole", "level", "x")
VALUES = ("", "0", "1", "-1", "nan", "inf", "1e400", "0,1", "5,2", "1,2,3", "%00", "%ff", "a" * 300,
          "99999999999999999999", "0.0000001", "1e9", "☃", "../../etc/passwd", "1;2", "[]", "{}",
          "true", "--", "%", "+", "0x10")  # fmt: skip
PATHS = ("/", "/blank.html", "/static/own.js", "/static/..%2fserver.py", "/api/predict", "/api",
         "/api/preview", "/%2e%2e/", "//", "/\x7f", "/api/predict/", "*")  # fmt: skip
METHODS = ("GET", "POST", "PUT", "HEAD", "DELETE", "OPTIONS", "TRACE", "G\0T")
HEADERS = ("Host: 127.0.0.1", "Host: evil.example", "Origin: http://evil.example", "Host:",
           "Content-Length: -1", "Content-Length: abc", "Content-Length: 5\r\nContent-Length: 6",
           "Transfer-Encoding: chunked", "Expect: 100-continue", "Range: bytes=0-9",
           "X: " + "y" * 9000,
           "Connection: Upgrade\r\nUpgrade: websocket", "Sec-Fetch-Site: cross-site",
           ": no name", "Content-Encoding: gzip", "Cookie: \xff\xfe")  # fmt: skip

ROUNDS, P99 = 6, 3.0
"""How often fifty upload at once, and the seconds in which 99 of 100 have their trees on a machine
that does nothing else."""


@contextlib.contextmanager
def explorer() -> Iterator[tuple[int, Path]]:
    """The port of a served `digits`, and the file with what its terminal shows."""
    with tempfile.TemporaryDirectory() as folder:
        terminal = Path(folder) / "terminal.txt"
        with terminal.open("w") as out:
            process = subprocess.Popen(
                [sys.executable, "-u", "-m", "posterior_trees", "explore", "digits", "--port", "0",
                 "--no-browser"], cwd=folder, stdout=out, stderr=out,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            )  # fmt: skip
        try:
            while not (found := re.search(r":(\d+)/", terminal.read_text())):
                assert process.poll() is None, terminal.read_text()
                time.sleep(0.1)
            yield int(found[1]), terminal
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(10)


def ask(port: int, content: bytes, is_whole: bool = True, seconds: float = 30.0) -> bytes:
    """The answer to these bytes; none is asked for where the request was cut short."""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
        with contextlib.suppress(ConnectionError):  # refused while sending: the answer is there
            connection.sendall(content)
        if not is_whole:
            return b""
        answer = b""
        while part := connection.recv(65536):
            answer += part
        return answer


def request(body: bytes, query: str = "", path: str = "/api/predict", method: str = "POST",
            headers: tuple[str, ...] = ()) -> bytes:  # fmt: skip
    lines = [f"{method} {path}{query} HTTP/1.1", *headers, "Connection: close"]
    if not any(h.startswith("Host") for h in headers):
        lines.append("Host: 127.0.0.1")
    if not any(h.startswith(("Content-Length", "Transfer")) for h in headers):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode("utf-8", "replace") + b"\r\n\r\n" + body


def digit(draw: np.random.Generator, side: int = 28) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(draw.integers(0, 256, (side, side), dtype=np.uint8)).save(stream, "PNG")
    return stream.getvalue()


def mutant(draw: np.random.Generator) -> tuple[bytes, bool]:
    """One hostile request, and whether it is whole, so that it must be answered."""
    kind = draw.integers(8)
    body = digit(draw)
    if kind == 0:
        return draw.integers(0, 256, int(draw.integers(1, 400)), dtype=np.uint8).tobytes(), False
    if kind == 1:  # pictures with flipped bytes
        broken = bytearray(body)
        for place in draw.integers(0, len(body), int(draw.integers(1, 30))):
            broken[place] = int(draw.integers(256))
        return request(bytes(broken), "?clean=1"), True
    if kind == 2:  # cut short
        whole = request(body, "?clean=1")
        return whole[: int(draw.integers(1, len(whole)))], False
    if kind == 3:  # something else than a picture
        return request(
            draw.integers(0, 256, int(draw.integers(0, 3000)), dtype=np.uint8).tobytes()
        ), True
    if kind == 4:  # another path or method
        words = str(draw.choice(METHODS)), str(draw.choice(PATHS))
        return request(b"", method=words[0], path=words[1]), False
    if kind == 5:
        picked = draw.choice(HEADERS, size=int(draw.integers(1, 4)), replace=False)
        return request(body, headers=tuple(map(str, picked))), False
    pairs = [f"{draw.choice(WORDS)}={draw.choice(VALUES)}" for _ in range(draw.integers(1, 6))]
    query = ("?" + "&".join(pairs)).replace(" ", "%20")
    return request(body + digit(draw) * int(draw.integers(2)), query), query.isascii()


def fifty_at_once(port: int, draw: np.random.Generator) -> list[float]:
    """Seconds until each of fifty simultaneous uploads has its tree: all of them, because they are
    fewer than may wait; 503 would try again."""
    uploads = [request(digit(draw), "?clean=1") for _ in range(50)]

    def insist(content: bytes) -> float:
        started = time.perf_counter()
        while (answer := ask(port, content))[9:12] == b"503":
            time.sleep(0.2)
        assert answer[9:12] == b"200", answer[:200]
        return time.perf_counter() - started

    with ThreadPoolExecutor(50) as threads:
        return list(threads.map(insist, uploads))


def attack(seed: int, count: int) -> tuple[int, list[str]]:
    """Requests tried, and what failed."""
    draw, failed = np.random.default_rng(seed), []
    with explorer() as (port, terminal):
        for number in range(count):
            content, is_whole = mutant(draw)
            try:
                answer = ask(port, content, is_whole)
            except OSError as error:
                answer = b""
                if is_whole:
                    failed.append(f"request {number}: {type(error).__name__}: {content[:80]!r}")
            code = answer[9:12]
            if is_whole and not answer:
                failed.append(f"request {number}: no answer: {content[:80]!r}")
            if code >= b"500" and code != b"503":
                failed.append(f"request {number}: {answer[:80]!r} to {content[:80]!r}")
        if ask(port, request(b"", method="GET", path="/"))[9:12] != b"200":
            failed.append("the page is no longer served")
        before = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
        seconds = sorted(taken for _ in range(ROUNDS) for taken in fifty_at_once(port, draw))
        middle, late = (seconds[round(share * len(seconds)) - 1] for share in (0.5, 0.99))
        print(f"{len(seconds)} uploads, fifty at once: median {middle:.2f} s, p99 {late:.2f} s, "
              f"with {before:.1f} processes for each core before")  # fmt: skip
        if late > P99 * before:
            failed.append(f"p99 of fifty uploads at once is {late:.2f} s, more than {P99} s")
        if "Traceback" in terminal.read_text():
            failed.append("the server printed a traceback: " + terminal.read_text()[-2000:])
    return count + len(seconds), failed


if __name__ == "__main__":
    tried, failures = attack(seed=0, count=int(sys.argv[1]) if len(sys.argv) > 1 else 3000)
    print(f"{tried} requests tried, {len(failures)} failed")
    print("\n".join(failures[:20]))
    sys.exit(bool(failures))
