"""What the site needs beyond the pages in this folder: a page for each method, and the files that pages link to.

On GitHub a page links to the repository's files as they lie, `../benchmarks/speed.md`. The site has the same files
under the same names, so that it can be read without a network; links are rewritten to where they are there.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
METHODS = Path(__file__).with_name("methods.md")
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```", re.S | re.M)
NAMED = re.compile(
    r"^```(\w+) file=(\S+)$", re.M
)  # a file that the tests write; GitHub shows such a block as any other


def methods() -> dict[str, str]:
    """The page of each method: what docs/methods.md, which is written from the registry, says of it."""
    sections = re.split(r"^## ", METHODS.read_text(encoding="utf-8"), flags=re.M)[1:]
    return {section.partition("\n")[0]: f"# {section}" for section in sections}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    section = next(entry["Methods"] for entry in config.nav or () if "Methods" in entry)
    section += [{name: f"methods/{name}.md"} for name in methods()]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name, text in methods().items():
        files.append(File.generated(config, f"methods/{name}.md", content=text))
    waiting = [ROOT / "docs" / file.src_uri for file in files.documentation_pages()]
    while waiting:
        page = waiting.pop()
        for path in _linked(page) if page.is_file() else ():
            inside = path.relative_to(ROOT).as_posix()
            if files.get_file_from_path(inside) is None and not inside.startswith("docs/"):
                there = InclusionLevel.NOT_IN_NAV
                files.append(File.generated(config, inside, abs_src_path=str(path), inclusion=there))
                waiting += [path] * (path.suffix == ".md")
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    uri = page.file.src_uri
    if uri == METHODS.name:
        markdown = markdown.partition("\n## ")[0] + "\n"
        page.meta["hide"] = ["toc"]  # it has no more sections, and a wide table
    if uri == "evidence.md":
        page.meta["hide"] = ["navigation"]  # of one entry, beside the widest tables
    if not (ROOT / "docs" / uri).is_file() and not uri.startswith("methods/"):
        page.meta["search"] = {"exclude": True}  # tables of hundreds of kilobytes
    markdown = NAMED.sub(r'```\1 title="\2"', markdown)
    # A fenced block, or what lies between two of them.
    parts = re.split(f"({CODE.pattern})", markdown, flags=CODE.flags)
    return "".join(part if part.startswith("```") else LINK.sub(lambda m: _link(m, uri), part) for part in parts)


def _linked(page: Path) -> list[Path]:
    """The files of the repository that a page links to."""
    text = CODE.sub("", page.read_text(encoding="utf-8"))
    targets = (target.partition("#")[0] for _, target in LINK.findall(text) if "://" not in target)
    found = [(page.parent / target).resolve() for target in targets if target]
    return [path for path in found if path.is_file()]


def _link(match: re.Match[str], uri: str) -> str:
    """A link of a page in the repository as it must be in the site."""
    text, target = match.groups()
    text = LINK.sub(lambda inner: _link(inner, uri), text)  # a picture that is a link
    if "://" in target or target.startswith("mailto:"):
        return f"[{text}]({target})"
    place, mark, anchor = target.partition("#")
    of_method = uri.startswith("methods/")
    page = "docs/methods.md" if of_method else f"docs/{uri}" if (ROOT / "docs" / uri).is_file() else uri
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), place)) if place else page
    if (ROOT / path).is_dir():
        return text  # a site has no folders to look into
    there = path.removeprefix("docs/")
    if path == "docs/methods.md" and anchor in methods():
        there, mark, anchor = f"methods/{anchor}.md", "", ""
    near = posixpath.relpath(there, posixpath.dirname(uri) or ".") if place or there != uri else ""
    return f"[{text}]({near}{mark}{anchor})"
