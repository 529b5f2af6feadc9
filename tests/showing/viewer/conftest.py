"""Pages made from a tiny checkpoint."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from runs.tiny_checkpoint import SPECIAL, write
from seewhen import cli
from showing.viewer.browser import Browser

EVIL = "<script>document.title='owned'</script><img src=x onerror=alert(1)>&amp;{{SCRIPT}}"


def _page(folder: Path, checkpoint: Path, *flags: str) -> Path:
    from seewhen.scenes import render, sample

    render(sample("test", 0)).save(folder / "scene.png")
    page = folder / "seen.html"
    command = ["seewhen", "compare", str(folder / "scene.png"), "--model", str(checkpoint), "--html", str(page)]
    command += ["-n", "14", "--set", "start_layer=1", "--set", "threshold=0.5", *flags]
    with patch.object(sys, "argv", command), pytest.raises(SystemExit) as exit_:
        cli.main()
    assert not exit_.value.code
    return page


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three methods on one scene."""
    return _page(tmp_path_factory.mktemp("page"), write(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="session")
def evil_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model each of whose words is markup."""
    checkpoint = write(tmp_path_factory.mktemp("evil"))
    path = checkpoint / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    words = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {
        word if word in SPECIAL else f"{EVIL}{number}": number for word, number in words.items()
    }
    path.write_text(json.dumps(tokenizer))
    return _page(tmp_path_factory.mktemp("evilpage"), checkpoint, "-q", EVIL)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One browser for all tests; each opens its page anew."""
    with Browser() as found:
        yield found


@pytest.fixture
def opened(browser: Browser, page: Path) -> Callable[..., Browser]:
    """Opens the page, with the selection on the first word of the first answer."""

    def open_(**options: bool | int) -> Browser:
        browser.open(page, **options)  # type: ignore[arg-type]
        browser.run("spans(0)[0].focus()")
        return browser

    return open_
