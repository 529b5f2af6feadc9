"""Names that strangers chose stay text in every format of a report."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from seewhen.runs.grid import Grid, latex_text, markdown_text, one_line, to_latex, to_markdown
from seewhen.runs.report import analyse, read_runs
from seewhen.runs.report_files import write_report

NASTY = "x\n\\input{/etc/passwd}\r\u2028<script>alert(1)</script><img src=x onerror=y> [a](js:b) `c` | & \\"
names = st.text(st.one_of(st.characters(), st.sampled_from("<>&[]()!`\\|%$#_{}~^\n\r\u2028:*a/")), max_size=40)
# What is left of LaTeX's own characters when all that `latex_text` writes is taken away.
_WRITTEN = re.compile(r"\\text(backslash|asciitilde|asciicircum)\{\}|\\[&%$#_{}]|\$[^$\\]\$|\{\}")


@example(NASTY)
@given(names)
def test_latex_keeps_a_name_on_its_line_and_harmless(name: str) -> None:
    left = _WRITTEN.sub("", latex_text(name))
    assert not re.search(r"[\\&%$#_{}~^\n\r\u2028\u2029\x00-\x1f]", re.sub(r"[↑↓−×▲▼—]|\$[^$]*\$", "", left))
    table = to_latex(Grid(name, ("a", name), ((name, name),), (name,)))
    assert len(table.splitlines()) == len(to_latex(Grid("t", ("a", "b"), (("c", "d"),), ("n",))).splitlines())


@example(NASTY)
@given(names)
def test_markdown_makes_no_tags_links_or_lines_of_a_name(name: str) -> None:
    told = markdown_text(name)
    assert "\n" not in told and "\r" not in told
    for token in MarkdownIt("commonmark").parse(f"x {told} y"):
        inner = {child.type for child in token.children or []}
        assert token.type != "html_block" and not inner & {"html_inline", "link_open", "image", "code_inline"}, (
            inner
        )
    seen: list[str] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: seen.append(tag)  # type: ignore[method-assign]
    parser.feed(told)
    assert not seen


def test_plain_text_stays_as_it_is() -> None:
    for text in (
        "CHAIR_S ↓",
        "88.10 [87.20, 89.00] ▲",
        "p < 0.001",
        "Regular + min-p",
        "−0.52 [−1, 0]",
    ):
        assert markdown_text(text) == text and one_line(text) == text
    assert to_markdown(Grid("T", ("a", "b"), (("x|y", "1 [0, 2] ▲"),), ("note",))).count("\n") == 7


def test_no_name_of_a_run_leaves_its_place(tmp_path: Path) -> None:
    from strangers.subjects import write_runs

    runs = tmp_path / "runs"
    runs.mkdir()
    write_runs(runs)
    for manifest in runs.glob("*/manifest.json"):
        plain = json.loads(manifest.read_text())
        plain["config"]["model"]["name"] = plain["config"]["benchmark"]["split"] = NASTY
        plain["config"]["benchmark"]["settings"] = {NASTY: NASTY}
        plain["environment"]["device_name"] = NASTY
        manifest.write_text(json.dumps(plain))
    files = {path.name: path.read_text() for path in write_report(analyse(read_runs([runs])), tmp_path / "out")}
    for line in files["report.tex"].splitlines():
        assert "\\input" not in line.partition("%")[0].replace("\\textbackslash{}input", ""), line
    assert not re.search(r"<(script|img)", files["report.md"] + files["index.html"].partition("<body")[2])
