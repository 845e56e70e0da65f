"""A real browser, and pages in it that may neither complain nor leave the machine."""

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from browsing import make_predictor, make_tree, serving

from posterior_trees.explore import describe_trees, page
from posterior_trees.serve.server import make_app

NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")  # its event loop must be gone when other files' tests begin
def browser() -> Iterator[Any]:
    """A browser; where there is none the tests are skipped, in CI they fail."""
    if os.environ.get("CI"):
        from playwright import sync_api
    else:
        sync_api = pytest.importorskip("playwright.sync_api")
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        reason = f"no browser: none of {', '.join(NAMES)} is installed (make browser)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=found, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield opened
        opened.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    """`visit(address)`: a page that may neither complain nor leave the machine."""
    problems: list[str] = []
    contexts = []

    def open_page(
        address: str, width: int = 1280, height: int = 720, expected: str = "\0", **options: Any
    ) -> Any:
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        opened = context.new_page()
        home = address.split("/", 3)[:3]

        def check(request: Any) -> None:
            is_ours = request.url.split("/", 3)[:3] == home
            if not is_ours and not request.url.startswith(("data:", "blob:", "about:")):
                problems.append(f"asked for {request.url}")

        opened.on("request", check)
        opened.on("pageerror", lambda error: problems.append(str(error)))

        def listen_to_console(message: Any) -> None:
            if message.type in ("error", "warning") and expected not in message.text:
                problems.append(message.text)

        opened.on("console", listen_to_console)
        opened.set_default_timeout(8000)
        opened.goto(address)
        return opened

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A saved page with three examples; the truth of each is its leaf 3."""
    file = tmp_path_factory.mktemp("page") / "index.html"
    trees = make_tree(3)
    file.write_text(
        page(trees, inputs=trees.root, truths=trees.leaves[:, 3], names=["a", "b", "c"]), "utf-8"
    )
    return file.as_uri()


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    examples = describe_trees(make_tree(), names=["first"])
    with serving(make_app(make_predictor(), examples=examples)) as address:
        yield address
