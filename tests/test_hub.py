"""Models on a hub, against a server on this machine that speaks the hub's protocol."""

import hashlib
import http.server
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from posterior_trees.cli import main
from posterior_trees.errors import ModelError
from posterior_trees.models import hub
from posterior_trees.models.checkpoint import find_model, load

pytest.importorskip("huggingface_hub", reason="the hub's extra is not installed")


class Hub(http.server.ThreadingHTTPServer):
    """Repositories in memory: every commit is a revision, `main` the newest."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.commits: dict[str, list[tuple[str, dict[str, bytes]]]] = {}
        self.blobs: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.mode = "fine"

    def handle_error(self, *_: Any) -> None:
        """A client that went away is its own business."""

    def files(self, repository: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        commits = self.commits.get(repository)
        if not commits:
            return None
        return commits[-1] if revision == "main" else dict.get(
            {oid: (oid, files) for oid, files in commits}, revision
        )  # fmt: skip


class Answers(http.server.BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def answer(self, code: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(code)
        sizes = {"Content-Length": str(len(body))} | headers
        for name, value in sizes.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: int(headers.get("Sent", len(body)))])
            if "Sent" in headers:
                self.close_connection = True

    def tell(self, value: Any, code: int = 200) -> None:
        self.answer(code, json.dumps(value).encode(), Content_Type="application/json")

    def refuse(self, code: int, why: str) -> None:
        self.answer(code, b"{}", X_Error_Code=why, X_Error_Message=why)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.server.asked.append(f"{self.command} {self.path}")
        if self.server.mode == "html":
            self.answer(200, b"<html>log in to this network first</html>", Content_Type="text/html")
            return
        if self.server.mode == "broken":
            self.answer(500, b"oops")
            return
        found = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self.path)
        commit = found and self.server.files(found[1], found[2])
        if not found or found[1] not in self.server.commits:
            self.refuse(404, "RepoNotFound")
        elif commit is None:
            self.refuse(404, "RevisionNotFound")
        elif found[3] not in commit[1]:
            self.refuse(404, "EntryNotFound")
        else:
            body = commit[1][found[3]]
            print_of = hashlib.sha256(body).hexdigest()
            cut = {"Sent": str(len(body) // 2)} if self.server.mode == "half" else {}
            if self.server.mode == "slow" and self.command == "GET":
                threading.Event().wait(1)
            self.answer(200, body, ETag=f'"{print_of}"', X_Repo_Commit=commit[0],
                        X_Linked_Etag=f'"{print_of}"',
                        X_Linked_Size=str(len(body)), **cut)  # fmt: skip

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def do_PUT(self) -> None:
        self.server.blobs[self.path.rpartition("/")[2]] = self.body()
        self.answer(200)

    def do_POST(self) -> None:
        said, place = self.body(), f"http://{self.headers['Host']}"
        self.server.asked.append(f"POST {self.path}")
        if not self.headers.get("Authorization"):
            self.refuse(401, "Unauthorized")
        elif self.path == "/api/repos/create":
            name = json.loads(said)
            repository = f"{name.get('organization') or 'me'}/{name['name']}"
            self.server.commits.setdefault(repository, [])
            self.tell({"url": f"{place}/{repository}"})
        elif self.path == "/api/validate-yaml":
            self.tell({"errors": [], "warnings": []})
        elif "/preupload/" in self.path:
            files = json.loads(said)["files"]
            modes = {
                f["path"]: "lfs" if f["path"].endswith("tensors") else "regular" for f in files
            }
            self.tell({"files": [{"path": p, "uploadMode": m, "shouldIgnore": False}
                                 for p, m in modes.items()]})  # fmt: skip
        elif self.path.endswith("/info/lfs/objects/batch"):
            objects = json.loads(said)["objects"]
            upload = [{"oid": o["oid"], "size": o["size"], "authenticated": True,
                       "actions": {"upload": {"href": f"{place}/blob/{o['oid']}"}}}
                      for o in objects]  # fmt: skip
            self.tell({"transfer": "basic", "objects": upload})
        elif "/commit/" in self.path:
            self.commit(said, place)
        else:
            self.refuse(404, "RepoNotFound")

    def commit(self, said: bytes, place: str) -> None:
        import base64

        repository = self.path.removeprefix("/api/models/").partition("/commit/")[0]
        files: dict[str, bytes] = {}
        for line in map(json.loads, said.splitlines()):
            if line["key"] == "file":
                files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            elif line["key"] == "lfsFile":
                files[line["value"]["path"]] = self.server.blobs[line["value"]["oid"]]
        oid = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
        self.server.commits[repository].append((oid, files))
        self.tell({"commitUrl": f"{place}/{repository}/commit/{oid}", "commitOid": oid,
                   "commitMessage": "", "commitDescription": ""})  # fmt: skip


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub that holds `lab/digits`, and an empty cache of what was fetched."""
    server = Hub()
    server.commits["lab/digits"] = [("a" * 40, {hub.FILE: find_model("digits").read_bytes()})]
    server.commits["lab/notes"] = [("b" * 40, {"README.md": b"nothing here"})]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    place = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setenv("HF_ENDPOINT", place)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)  # plain LFS
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    yield server
    server.shutdown()
    server.server_close()


def test_a_model_of_the_hub_is_loaded_and_fetched_once(served: Hub) -> None:
    predictor = load("hf://lab/digits", "cpu")
    own = load("digits", "cpu")
    for ours, theirs in zip(own.parameters(), predictor.parameters(), strict=True):
        assert ours.equal(theirs)
    load(f"hf://lab/digits@{'a' * 40}", "cpu")
    assert len([line for line in served.asked if line.startswith("GET /lab/")]) == 1


def test_what_was_fetched_is_used_while_the_hub_is_down(served: Hub) -> None:
    load("hf://lab/digits", "cpu")
    served.mode = "broken"
    assert load("hf://lab/digits", "cpu").branching == (3, 3)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("hf://lab/none", "there is no such model, or it is private"),
        ("hf://lab/digits@" + "c" * 40, "it has no revision"),
        ("hf://lab/notes", f"it holds no {hub.FILE}"),
        ("hf://lab", "write hf://owner/name"),
        ("hf://lab/digits/deeper", "write hf://owner/name"),
        ("hf://../digits", "write hf://owner/name"),
        ("hf://lab/digits@", "write hf://owner/name"),
    ],
)
def test_what_is_not_there_is_said(served: Hub, address: str, words: str) -> None:
    with pytest.raises(ModelError, match=re.escape(words)):
        load(address)


@pytest.mark.parametrize("mode", ["html", "broken", "half"])
def test_a_hub_that_fails_is_named_and_leaves_nothing(
    served: Hub, tmp_path: Path, mode: str
) -> None:
    served.mode = mode
    with pytest.raises(ModelError, match="hf://lab/digits"):
        load("hf://lab/digits")
    assert not [f for f in (tmp_path / "cache").rglob(hub.FILE) if f.exists()]
    served.mode = "fine"
    assert load("hf://lab/digits", "cpu").branching == (3, 3)


def test_a_slow_hub_is_waited_for(served: Hub) -> None:
    served.mode = "slow"
    assert load("hf://lab/digits", "cpu").branching == (3, 3)


def test_a_file_that_is_no_model_is_refused(served: Hub) -> None:
    served.commits["lab/bad"] = [("d" * 40, {hub.FILE: b"\x08" + b"\0" * 7 + b"not json"})]
    with pytest.raises(ModelError, match="is damaged"):
        load("hf://lab/bad")


def test_a_model_is_pushed_with_its_card_and_comes_back_the_same(
    served: Hub, tmp_path: Path
) -> None:
    address = hub.push(find_model("digits"), "hf://lab/mine", "# A card\n")
    _, files = served.commits["lab/mine"][-1]
    assert set(files) == {hub.FILE, hub.README}
    assert files[hub.README] == b"# A card\n"
    assert hub.fetch(address).read_bytes() == find_model("digits").read_bytes()
    with pytest.raises(ModelError, match="leave it out"):
        hub.push(find_model("digits"), address, "")


def test_the_command_pushes_a_model_with_the_card_that_it_shows(
    served: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["card", "digits"])
    card = capsys.readouterr().out
    assert "Measured on 10,000 test images" in card
    main(["push", "digits", "hf://lab/mine"])
    assert capsys.readouterr().out.startswith("there now: hf://lab/mine@")
    assert served.commits["lab/mine"][-1][1][hub.README].decode() == card
    assert load("hf://lab/mine", "cpu").branching == (3, 3)


def test_pushing_without_an_account_says_how_to_log_in(
    served: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
    with pytest.raises(ModelError, match="log in"):
        hub.push(find_model("digits"), "hf://lab/mine", "")


def test_offline_only_what_was_fetched_is_there(served: Hub, tmp_path: Path) -> None:
    hub.fetch("hf://lab/digits")
    program = (
        "from posterior_trees.models import hub\n"
        "print(hub.fetch('hf://lab/digits').stat().st_size)\n"
        "hub.fetch('hf://lab/other')"
    )
    offline = {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True,
        env=os.environ | offline | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert int(done.stdout) == find_model("digits").stat().st_size
    assert "it was not fetched before" in done.stderr


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(RuntimeError, match=r"\[hub\]"):
        hub.fetch("hf://lab/digits")
