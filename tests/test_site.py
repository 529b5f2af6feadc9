"""The documentation as a site: every page can be reached, nothing is fetched, search works from files."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml

import seewhen
from seewhen import plugin
from showing.viewer.browser import Browser

ROOT = Path(__file__).resolve().parents[1]


class Parsed(HTMLParser):
    """What a page links to, what it loads, and the places in it that a link can name."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loads: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.add(found["href"])
        elif tag == "link" and found.get("rel") not in ("prev", "next", "canonical"):
            self.loads.add(found["href"])
        if "src" in found:
            self.loads.add(found["src"])


@pytest.fixture(scope="module")
def whole_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make site` does."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder


@pytest.fixture(scope="module")
def pages(whole_site: Path) -> dict[Path, Parsed]:
    return {path: Parsed(path) for path in whole_site.rglob("*.html") if path.name != "404.html"}


def named(entry: object) -> Iterator[str]:
    """The pages of a navigation."""
    if isinstance(entry, str):
        yield entry
    else:
        for inner in entry.values() if isinstance(entry, dict) else entry:  # type: ignore[attr-defined]
            yield from named(inner)


def test_every_page_of_the_documentation_is_in_the_navigation() -> None:
    listed = list(named(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))
    written = {path.name for path in ROOT.glob("docs/*.md")}
    assert written == set(listed), "put new pages into `nav` of mkdocs.yml"
    assert len(listed) == len(written)


def test_every_page_can_be_reached_from_the_first(whole_site: Path, pages: dict[Path, Parsed]) -> None:
    seen, waiting = set(), [whole_site / "index.html"]
    while waiting:
        page = waiting.pop()
        if page in seen:
            continue
        seen.add(page)
        targets = ((page.parent / unquote(urlsplit(link).path)).resolve() for link in pages[page].links)
        waiting += [target for target in targets if target in pages]
    assert seen == set(pages)
    assert {f"{name}.html" for name in seewhen.method_names()} <= {
        path.name for path in whole_site.glob("methods/*")
    }


def test_links_and_pictures_lead_somewhere(pages: dict[Path, Parsed]) -> None:
    missing = []
    for page, found in pages.items():
        for link in found.links | found.loads:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            there = target.is_file() or (target / "index.html").is_file()
            anchor = unquote(parts.fragment)
            if not there or (anchor and target in pages and anchor not in pages[target].anchors):
                missing.append((page.name, link))
    assert not missing


def test_every_fence_is_a_block_of_code(pages: dict[Path, Parsed]) -> None:
    assert not [page.name for page in pages if "```" in page.read_text(encoding="utf-8")]


def test_nothing_comes_from_another_host(whole_site: Path, pages: dict[Path, Parsed]) -> None:
    foreign = {load for found in pages.values() for load in found.loads if urlsplit(load).netloc}
    assert not foreign
    styles = [path.read_text(encoding="utf-8") for path in whole_site.rglob("*.css")]
    assert styles and not any("url(http" in style or "url(//" in style or "@import" in style for style in styles)


def test_the_reference_has_every_public_name(whole_site: Path, pages: dict[Path, Parsed]) -> None:
    names = [f"seewhen.{name}" for name in seewhen.__all__ if name not in dir(plugin)]
    assert set(names) <= pages[whole_site / "reference.html"].anchors
    names = [f"seewhen.plugin.{name}" for names in plugin._PUBLIC.values() for name in names]
    assert set(names) <= pages[whole_site / "reference-plugin.html"].anchors


def test_in_a_browser_from_files(whole_site: Path) -> None:
    """Search finds a page, nothing fails or is fetched, and no page is wider than a phone."""
    with Browser() as browser:
        browser.open(whole_site / "index.html")
        browser.run("document.querySelector('.md-search__input').focus()")
        browser.wait("window.__index")
        browser.run(
            "(input => { input.value = 'conformal'; input.dispatchEvent(new Event('keyup', {bubbles: true})) })"
            "(document.querySelector('.md-search__input'))"
        )
        browser.wait("document.querySelector('.md-search-result__link')")
        assert "confirm.html" in browser.run("document.querySelector('.md-search-result__link').href")
        _calm(browser)
        for page in ("index", "evidence", "methods", "methods/cai", "reference", "benchmarks/speed"):
            browser.open(whole_site / f"{page}.html", 390, 844, phone=True)
            assert browser.run("document.documentElement.scrollWidth") <= 390, page
            _calm(browser)


def _calm(browser: Browser) -> None:
    asked = [e["params"]["request"]["url"] for e in browser.events if e["method"] == "Network.requestWillBeSent"]
    assert all(address.startswith(("file:", "data:", "blob:", "about:")) for address in asked)
    bad = ("Runtime.exceptionThrown", "Log.entryAdded")
    assert not [event["params"] for event in browser.events if event["method"] in bad]
