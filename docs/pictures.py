"""Makes the pictures of docs/viewer.md in docs/images/viewer: `python docs/pictures.py`.

Real pages in a headless Chromium, with the packaged model. Needs the extras `serve` and `dev`.
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
OUT = ROOT / "docs" / "images" / "viewer"
COMMAND = [sys.executable, "-c", "from seewhen.cli import main; main()"]
SCENE = 3  # of the shifted part, as in `seewhen demo`

sys.path.insert(0, str(ROOT / "tests"))
from viewer.browser import Browser  # noqa: E402


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


def keep(browser: Browser, name: str, height: int | None = None) -> None:
    """The page as it is now, cut at `height`, as a small file."""
    with tempfile.TemporaryDirectory() as folder:
        shot = Path(folder) / "shot.png"
        browser.screenshot(shot)
        image = Image.open(io.BytesIO(shot.read_bytes())).convert("RGB")
    if height is not None:
        image = image.crop((0, 0, image.width, min(height, image.height)))
    OUT.mkdir(parents=True, exist_ok=True)
    target = OUT / f"{name}.webp"
    image.save(target, "WEBP", quality=82, method=6)
    print(f"{target.name}: {image.width} x {image.height}, {target.stat().st_size / 1000:.0f} kB")


PHONE: dict[str, Any] = {"width": 390, "height": 844, "phone": True}


def static_pages(browser: Browser, folder: Path) -> None:
    """Two methods on one scene, in the light, in the dark, and on a phone."""
    from seewhen.scenes import render, sample

    scene = sample("shifted", SCENE)
    render(scene).save(folder / "scene.png")
    # From traces: the times that `--html` shows would be those of a machine busy with a browser.
    seewhen("compare", folder / "scene.png", "--methods", "regular,cai", "--trace", folder / "traces")
    page = folder / "seen.html"
    seewhen("view", folder / "traces", "--objects", ",".join(scene.names), "--out", page, "--no-open")
    browser.open(page)
    keep(browser, "page", 1130)
    browser.open(page, dark=True)
    browser.run("cycle('map-kind', 3); cycle('map-look', 1)")
    keep(browser, "dark", 1130)
    browser.open(page, **PHONE)
    keep(browser, "phone", 1500)


def run_page(browser: Browser, folder: Path) -> None:
    """Two runs side by side."""
    for method in (("regular",), ("cai", "--set", "contrast=3")):
        flags = ("--scenes", 12, "--split", "shifted", "--greedy", "--no-controls", "--out", folder / "runs")
        seewhen("eval", "chair", "--method", *method, *flags)
    runs = sorted((folder / "runs").iterdir(), key=lambda path: "_regular_" not in path.name)
    seewhen("view", *runs, "--out", folder / "runs.html", "--no-open")
    browser.open(folder / "runs.html")
    keep(browser, "run", 1000)


def live_pages(browser: Browser) -> None:
    """The server's page while it answers, and on a phone."""
    with serving() as url:
        browser.open(url)
        browser.wait("at('scenes').children.length === 6")
        browser.run(f"document.querySelectorAll('#scenes button')[{SCENE}].click()")
        browser.run("chooser.rows[1].box.querySelector('details').open = true")
        browser.run("void ask()")
        browser.wait("DATA.answers.some((answer) => answer.busy && answer.tokens.length > 20)")
        keep(browser, "live", 1300)
        browser.wait("!live.abort")
        browser.open(url, **PHONE)
        browser.wait("at('scenes').children.length === 6")
        browser.run("at('go').click()")
        browser.wait("DATA.answers.length && !live.abort")
        keep(browser, "live-phone", 1700)


def main() -> None:
    """All of them."""
    # Pictures are of one machine's fonts: they are made again when the page changes, not on every build.
    with tempfile.TemporaryDirectory() as folder, Browser() as browser:
        static_pages(browser, Path(folder))
        run_page(browser, Path(folder))
        live_pages(browser)


if __name__ == "__main__":
    main()
