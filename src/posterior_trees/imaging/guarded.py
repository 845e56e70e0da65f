"""Somebody's picture, decoded in a process that can be ended: a limit on its time and its memory.

A few megabytes can ask for minutes and for all of the memory: a thousand scans of a JPEG, a TIFF
whose thousand tags all name the same 19 MB. Pillow cannot be stopped; a process can. It is started
with the first picture that needs it and kept. Plain PNG and JPEG, of which nothing hidden is read,
take time by their pixels alone and are decoded here.
"""

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from io import BytesIO
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from posterior_trees.errors import DataError
from posterior_trees.imaging import decode
from posterior_trees.imaging.stack import damage_named, need

SECONDS, GIGABYTES = 20.0, 4.0
"""What one picture may take; a photograph of 40 megapixels takes a second and a half gigabyte."""
SCANS = 16
"""Passes over a JPEG that are common; each costs as much as the whole picture."""


def picture_size(content: bytes, name: str) -> tuple[int, int]:
    """Height and width by what the bytes say of themselves, before any pixel is decoded."""
    height, width = _ask("size", content, name)
    return height, width


def picture_header(content: bytes, name: str) -> decode.Header:
    """`decode.read_header`, of bytes that nobody trusts."""
    return decode.Header(*_ask("header", content, name))


def decode_picture(
    content: bytes, name: str, channels: int, size: tuple[int, ...] = (), is_cut: bool = True
) -> decode.Stored:
    """`decode.decode_raw`, of bytes that nobody trusts."""
    return _ask("pixels", content, name, channels, list(size), is_cut)


def check_series(path: str) -> None:
    """Refuse a TIFF whose description takes tifffile more than the limits: a few letters of it can
    name a thousand million planes. Also what tifffile cannot read."""
    WORKER.ask(b"", ["series", path, os.path.abspath(path)])  # its folder may be another by now


def is_harmless(content: bytes) -> bool:
    """Whether a file's pixels are all that can take time in it."""
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        return not any(word in content for word in (b"eXIf", b"Raw profile", b"acTL"))
    if content.startswith(b"\xff\xd8\xff"):
        return content.count(b"\xff\xda") <= SCANS and content.count(b"Exif\0\0") <= 1
    return content[:2] in (b"P5", b"P6")


def _ask(what: str, content: bytes, *words: Any) -> Any:
    if is_harmless(content):
        return _do(what, content, *words)
    return WORKER.ask(content, [what, *words])


def _do(what: str, content: bytes, name: str, *words: Any) -> Any:
    """The work itself, here or there."""
    if what == "header":
        return decode.read_header(BytesIO(content), name)
    if what == "series":
        with damage_named(name), need("tifffile").TiffFile(words[0]) as file:
            return [len(series.levels) for series in file.series]
    if what == "size":
        with decode.errors_name(name), Image.open(BytesIO(content), formats=decode.FORMATS) as it:
            return it.height, it.width
    channels, size, is_cut = words
    return decode.decode_raw(BytesIO(content), name, channels, tuple(size), is_cut)


class Worker:
    """The process, and one question at a time to it."""

    def __init__(self, seconds: float | int = SECONDS, gigabytes: float | int = GIGABYTES) -> None:
        self.seconds, self.gigabytes = seconds, gigabytes
        self.lock, self.process = threading.Lock(), None
        atexit.register(self.end)

    def ask(self, content: bytes, words: list[Any]) -> Any:
        """What the process answers; it is ended if it does not in time, and begun anew."""
        with self.lock:
            process = self.process
            if process is None or process.poll() is not None:
                process = self.process = self._start()
            too_late = threading.Timer(self.seconds, process.kill)
            too_late.start()
            try:
                send(process.stdin, {"words": words}, content)
                answer, values = receive(process.stdout)
            except (OSError, EOFError):
                is_late = too_late.finished.is_set()
                self.end()
                limit = f"{self.seconds:g} s" if is_late else f"{self.gigabytes:g} GB"
                raise DataError(
                    f"{words[1]} takes more than {limit} to decode, the limit, or ends the "
                    "decoder. Save it anew with another program, as PNG or uncompressed TIFF"
                ) from None
            except BaseException:  # stopped in between: its answer would be the next one's
                self.end()
                raise
            finally:
                too_late.cancel()
        if "error" in answer:
            raise DataError(answer["error"])
        if "dtype" not in answer:
            return answer["found"]
        return np.frombuffer(values, answer["dtype"]).reshape(answer["shape"]).copy()

    def end(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            with contextlib.suppress(OSError), process:  # which closes its pipes and waits for it
                process.kill()

    def _start(self) -> Any:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        process: Any = subprocess.Popen(
            [sys.executable, "-m", __name__, str(int(self.gigabytes * 1e9))], env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        receive(process.stdout)  # it is ready: starting is no picture's fault
        return process


WORKER = Worker()


def send(pipe: BinaryIO, words: dict[str, Any], content: bytes | memoryview = b"") -> None:
    head = json.dumps(words | {"bytes": len(content)}).encode()
    pipe.write(len(head).to_bytes(4, "big") + head)
    pipe.write(content)
    pipe.flush()


def receive(pipe: BinaryIO) -> tuple[dict[str, Any], bytes]:
    """Words and bytes; EOFError where the other side is gone."""
    head = pipe.read(4)
    words = pipe.read(int.from_bytes(head, "big"))
    if len(head) < 4 or not words:
        raise EOFError
    told = json.loads(words)
    content = pipe.read(told["bytes"])
    if len(content) < told["bytes"]:
        raise EOFError
    return told, content


def serve() -> None:
    """Answer questions until there are no more, with no more memory than was said."""
    limit = int(sys.argv[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever asks
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    send(stdout, {})
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            told, content = receive(stdin)
            what, name, *words = told["words"]
            try:
                found = _do(what, content, name, *words)
            except DataError as error:
                send(stdout, {"error": str(error)})
            except MemoryError:
                text = f"{name} takes more than {limit / 1e9:g} GB to decode, the limit"
                send(stdout, {"error": f"{text}. Make it smaller first"})
            else:
                if isinstance(found, np.ndarray):
                    form = {"dtype": found.dtype.str, "shape": found.shape}
                    send(stdout, form, np.ascontiguousarray(found).data.cast("B"))
                else:
                    send(stdout, {"found": list(found)})


if __name__ == "__main__":
    serve()
