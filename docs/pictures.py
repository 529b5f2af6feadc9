"""Makes the pictures of docs/viewer.md, docs/runs.md and docs/try.md in docs/images: `python docs/pictures.py`, or
only those of some pages: `python docs/pictures.py runs live`.

Real pages in a headless Chromium, with the small models. Needs the extras `serve`, `dev` and `photo`.
"""

from __future__ import annotations

import io
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "docs" / "images"
COMMAND = [sys.executable, "-c", "from seewhen.cli import main; main()"]
SCENE = 3  # of the shifted part

sys.path.insert(0, str(ROOT / "tests"))
from showing.viewer.browser import Browser  # noqa: E402


def seewhen(*arguments: object) -> None:
    """Run a command."""
    subprocess.run([*COMMAND, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)


@contextmanager
def serving() -> Iterator[str]:
    """A server of the packaged model; gives its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen([*COMMAND, "serve", "--port", str(port), "--log-level", "warning"])
    url = f"http://127.0.0.1:{port}"
    try:
        while True:
            try:
                urllib.request.urlopen(f"{url}/readyz")
                break
            except OSError:
                time.sleep(0.3)
        yield f"{url}/"
    finally:
        process.terminate()
        process.wait(60)


def keep(browser: Browser, name: str, height: int | None = None, page: str = "viewer", top: int = 0) -> None:
    """The page as it is now, from `top`, cut at `height`, as a small file."""
    with tempfile.TemporaryDirectory() as folder:
        shot = Path(folder) / "shot.png"
        browser.screenshot(shot)
        image = Image.open(io.BytesIO(shot.read_bytes())).convert("RGB")
    if height is not None:
        image = image.crop((0, top, image.width, min(top + height, image.height)))
    target = OUT / page / f"{name}.webp"
    target.parent.mkdir(parents=True, exist_ok=True)
    image.save(target, "WEBP", quality=82, method=6)
    print(f"{target.name}: {image.width} x {image.height}, {target.stat().st_size / 1000:.0f} kB")


PHONE: dict[str, Any] = {"width": 390, "height": 844, "phone": True}


def static_pages(browser: Browser, folder: Path) -> None:
    """The page of `seewhen demo`, what was taken back unfolded: in the light, in the dark, and on a phone."""
    seewhen("demo", "--out", folder)
    page = folder / "seen.html"
    unfold = "DATA.answers.forEach((_, number) => unfoldAll(number))"
    browser.open(page)
    browser.run(unfold)
    keep(browser, "page", 1112)
    browser.open(page, dark=True)
    browser.run("cycle('map-kind', 3); cycle('map-look', 1)")
    keep(browser, "dark", 1130)
    browser.open(page, **PHONE)
    browser.run(unfold)
    keep(browser, "phone", 1500)


def run_pages(browser: Browser, folder: Path) -> None:
    """Two runs side by side; a report, and the answers behind one of its scores, on a desktop and a phone."""
    for method in (("regular",), ("cai", "--set", "contrast=3"), ("confirm:coco",)):
        flags = ("--scenes", 12, "--split", "shifted", "--greedy", "--no-controls", "--out", folder / "runs")
        seewhen("eval", "chair", "--method", *method, *flags)
    runs = sorted((folder / "runs").iterdir(), key=lambda path: "_regular_" not in path.name)
    seewhen("view", *runs[:2], "--out", folder / "runs.html", "--no-open")
    browser.open(folder / "runs.html")
    keep(browser, "run", 1000)
    seewhen("report", folder / "runs", "--look", 6, "--out", folder / "report")
    for name, address, height in (
        ("report", "index.html", 1000),
        ("answers", "answers-1.html#run=cai%3Acontrast%3D3&show=wrong", 1150),
    ):
        browser.open(f"{(folder / 'report').as_uri()}/{address}")
        keep(browser, name, height)
        browser.open(f"{(folder / 'report').as_uri()}/{address}", **PHONE)
        keep(browser, f"{name}-phone", 1500)


def tried_pages(browser: Browser, folder: Path) -> None:
    """The page of `seewhen try` with labels."""
    seewhen("scenes", "render", "--n", 24, "--split", "shifted", "--questions", "--out", folder / "scenes")
    labels = ("--objects", folder / "scenes" / "chair.json", "--lexicon", "coco")
    flags = ("--do-sample", "--words", 1, "--no-open", "--out", folder / "tried")
    seewhen("try", "packaged", folder / "scenes", *labels, *flags)
    page = folder / "tried" / "index.html"
    browser.open(page)
    browser.wait("[...document.images].slice(0, 2).every((image) => image.complete)")
    keep(browser, "page", 1950, "try")
    browser.open(f"{page.as_uri()}#show=denied", **PHONE)
    top = browser.run("document.querySelector('#pictures-title').getBoundingClientRect().top + scrollY")
    keep(browser, "phone", 1500, "try", int(top) - 10)


def live_pages(browser: Browser, folder: Path) -> None:
    """The server's page while it answers, with verdicts, and on a phone."""
    with serving() as url:
        browser.open(url)
        browser.wait("at('scenes').children.length === 6")
        browser.run(f"document.querySelectorAll('#scenes button')[{SCENE}].click()")
        browser.run("chooser.rows[1].box.querySelector('details').open = true")
        browser.run("void ask()")
        browser.wait("DATA.answers.some((answer) => answer.busy && answer.tokens.length > 20)")
        keep(browser, "live", 1300)
        browser.wait("!live.abort")
        browser.run("chooser.rows[1].box.querySelector('select').value = 'confirm'")
        browser.run("chooser.rows[1].box.querySelector('select').dispatchEvent(new Event('change'))")
        browser.run("at('p-1-threshold').value = 1; at('p-1-threshold').dispatchEvent(new Event('input'))")
        browser.run("void ask()")
        browser.wait("DATA.answers.some((answer) => answer.asked) && !live.abort")
        browser.run("unfoldAll(1); at('ask').hidden = true")
        keep(browser, "live-confirm", 900)
        browser.open(url, **PHONE)
        browser.wait("at('scenes').children.length === 6")
        browser.run("at('go').click()")
        browser.wait("DATA.answers.length && !live.abort")
        keep(browser, "live-phone", 1700)


PAGES = {"static": static_pages, "runs": run_pages, "try": tried_pages, "live": live_pages}


def main() -> None:
    """All of them, or those named."""
    # Pictures are of one machine's fonts: they are made again when the page changes, not on every build.
    with tempfile.TemporaryDirectory() as folder, Browser() as browser:
        for name in sys.argv[1:] or PAGES:
            PAGES[name](browser, Path(folder))


if __name__ == "__main__":
    main()
