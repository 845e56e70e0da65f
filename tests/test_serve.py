"""The explorer's server on a real address: slow, half-sent, many and lost requests, and its end."""

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest

from posterior_trees.serve import body
from posterior_trees.serve.listen import WAITING, impatient, listen, make_server
from posterior_trees.serve.server import make_app
from tests.test_explore_server import make_predictor, picture, png

HEAD = "POST /api/predict?clean=1 HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"


@contextlib.contextmanager
def serving(**options: Any) -> Iterator[int]:
    """The port of a server that really listens."""
    server, opened = make_server(make_app(make_predictor(), **options)), listen("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]})
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield opened.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(10)
        assert not thread.is_alive()


def send(port: int, content: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=20)
    connection.sendall(content)
    return connection


def answer_of(connection: socket.socket) -> bytes:
    parts = []
    with connection:
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def upload(content: bytes, announced: int | None = None) -> bytes:
    size = len(content) if announced is None else announced
    return f"{HEAD}Content-Length: {size}\r\n\r\n".encode() + content


def code_of(answer: bytes) -> int:
    found = re.match(rb"HTTP/1.1 (\d+)", answer)
    assert found is not None, answer[:80]
    return int(found[1])


def get_page(port: int) -> int:
    return code_of(answer_of(send(port, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                                        b"Connection: close\r\n\r\n")))  # fmt: skip


def test_slow_uploads_take_no_places() -> None:
    with serving(room=1) as port:
        slow = [send(port, upload(b"x", announced=1000)) for _ in range(20)]
        assert code_of(answer_of(send(port, upload(png(picture()))))) == 200
        for connection in slow:
            connection.close()


def test_an_upload_without_progress_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "SECONDS_IDLE", 0.3)
    with serving() as port:
        started = time.perf_counter()
        answer = answer_of(send(port, upload(b"x", announced=1000)))
        assert code_of(answer) == 408
        assert b"send it again" in answer
        assert time.perf_counter() - started < 5


def test_half_sent_heads_do_not_keep_the_page_from_being_served() -> None:
    with serving() as port:
        half = [send(port, b"GET / HTTP/1.1\r\nHost: 127") for _ in range(600)]
        assert get_page(port) == 200
        dropped = 0
        for connection in half:
            connection.settimeout(0.01)
            with contextlib.suppress(TimeoutError), contextlib.suppress(ConnectionError):
                assert connection.recv(1) == b""
                dropped += 1
                continue
        still = [c for c in half if _is_open(c)]
        assert len(still) <= WAITING
        for connection in half:
            connection.close()


def _is_open(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) != b""
    except TimeoutError:
        return True
    except ConnectionError:
        return False


def test_a_head_that_never_ends_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posterior_trees.serve.listen.SECONDS_FOR_HEAD", 0.2)
    with serving() as port:
        first = send(port, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        assert not _ends_later(first)
        second = send(port, b"GET /blank.html HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        time.sleep(0.5)  # answered, and kept for the next request …
        second.sendall(b"GET / HTTP/1.1\r\nHo")  # … which stops in its head
        assert not _ends_later(second)


def _ends_later(connection: socket.socket) -> bool:
    connection.settimeout(5)
    with contextlib.suppress(ConnectionError):
        while connection.recv(65536):
            pass
    connection.close()
    return False


def test_large_uploads_beyond_what_is_held_read_their_refusal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also those that announce `Connection: close`, and those over the limit of one file."""
    monkeypatch.setattr(body.Arrivals.__init__, "__defaults__", (8e6,))
    with serving() as port, ThreadPoolExecutor(12) as threads:
        large = upload(b"x" * 3_000_000)
        answers = list(threads.map(lambda _: answer_of(send(port, large)), range(12)))
        codes = [code_of(answer) for answer in answers]
        assert set(codes) <= {422, 503}, codes  # no image, or no room; and never a reset
        assert code_of(answer_of(send(port, upload(b"x" * 30_000_000)))) == 413
        assert code_of(answer_of(send(port, upload(png(picture()))))) == 200


def test_of_many_that_come_at_once_some_are_whole() -> None:
    """Who is refused holds nothing any more, and those who are not go on."""

    class Upload:
        headers: ClassVar = {}

        async def stream(self) -> AsyncIterator[bytes]:
            for _ in range(8):
                yield b"x"
                await asyncio.sleep(0)

    async def send(arrivals: body.Arrivals) -> bytes:
        with arrivals.counted() as take:
            return await body.read_body(Upload(), 1, take)

    async def crowd(arrivals: body.Arrivals) -> list[bytes | BaseException]:
        return await asyncio.gather(*(send(arrivals) for _ in range(5)), return_exceptions=True)

    answers = asyncio.run(crowd(body.Arrivals(10.0)))
    assert b"x" * 8 in answers
    assert {getattr(answer, "status", 200) for answer in answers} == {200, 503}


def test_what_is_held_is_given_back() -> None:
    arrivals = body.Arrivals(10.0)

    def fail() -> None:
        with arrivals.counted() as take:
            assert take(7)
            assert not take(4)
            assert arrivals.held == 0
            assert take(3)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert arrivals.held == 0


def test_a_client_that_leaves_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with serving() as port:
        for content in (upload(b"x", announced=1000), upload(png(picture())), HEAD.encode()):
            for _ in range(10):
                send(port, content).close()
        assert get_page(port) == 200
        time.sleep(0.2)
    assert "Traceback" not in capfd.readouterr().err


def test_a_body_that_is_not_as_announced_prints_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with serving() as port:
        for body_of in (b"zz\r\nno chunk", b"5\r\nhello world\r\n", b"-1\r\n"):
            for head in (HEAD, HEAD + "Origin: http://evil.example\r\n"):  # refused at once
                content = f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + body_of
                assert code_of(answer_of(send(port, content))) == 400
        assert get_page(port) == 200
        time.sleep(0.2)
    assert "Traceback" not in capfd.readouterr().err


def test_the_server_speaks_http_only_as_uvicorn_does() -> None:
    assert impatient().__mro__[1].__module__.startswith("uvicorn")


@pytest.mark.skipif(os.name == "nt", reason="Ctrl-C is a signal")
@pytest.mark.parametrize("is_busy", [False, True])
def test_one_interrupt_ends_the_server(tmp_path: Path, is_busy: bool) -> None:
    """Also while a picture is being worked on that would take for ever."""
    (tmp_path / "slow.py").write_text(
        "import time\nfrom pathlib import Path\n"
        "def wait(image):\n    time.sleep(600 if Path('busy').exists() else 0)\n    return 0.0\n"
    )
    command = [sys.executable, "-m", "posterior_trees", "explore", "digits", "--port", "0",
               "--no-browser", "--measure", "slow:wait"]  # fmt: skip
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([*sys.path, str(tmp_path)])},
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            line = process.stdout.readline()
            found = re.search(r":(\d+)/", line)
            assert found is not None, process.stderr.read()
            port = int(found[1])
            assert get_page(port) == 200
            idle = send(port, b"GET / HT")
            if is_busy:
                (tmp_path / "busy").touch()
                waiting = send(port, upload(png(picture(28, 28))))
                time.sleep(2)
            started = time.perf_counter()
            process.send_signal(signal.SIGINT)
            code = process.wait(20)
            seconds = time.perf_counter() - started
            idle.close()
            if is_busy:
                waiting.close()
        finally:
            process.kill()
        assert code == 0
        assert "Traceback" not in process.stderr.read()
        assert seconds < 2 + 2  # the promise is 2 on a quiet machine; tests share theirs
