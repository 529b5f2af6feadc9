"""The page as a file: complete, closed, and deaf to what a model says."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from seewhen.showing.viewer.page import image_payload, page_html
from seewhen.showing.viewer.payload import packed
from showing.viewer.conftest import EVIL
from showing.viewer.page_data import embedded, payload_of


class _Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def _elements(path: Path) -> list[tuple[str, dict[str, str | None]]]:
    parser = _Elements()
    parser.feed(path.read_text(encoding="utf-8"))
    return parser.found


def test_nothing_is_fetched(page: Path) -> None:
    addresses = set(re.findall(r"(?:https?:)?//[\w.-]+[^\s\"'<>)]*", _without_payload(page)))
    comments = {address for address in addresses if not re.match(r"https?:", address)}
    assert addresses - comments == {"http://www.w3.org/2000/svg"}  # a name, not an address
    for tag, attributes in _elements(page):
        for name in ("src", "href", "srcset", "action", "data"):
            value = attributes.get(name)
            assert value is None or value.startswith(("data:", "#")), (tag, value)
        assert not any(name.startswith("on") or name == "style" for name in attributes), tag
    assert payload_of(page)["images"][0]["src"].startswith("data:image/png;base64,")


def _without_payload(path: Path) -> str:
    return re.sub(r'(<script id="payload"[^>]*>).*?</script>', r"\1</script>", path.read_text(encoding="utf-8"))


def test_the_policy_allows_our_own_style_and_script_only(page: Path) -> None:
    html = page.read_text(encoding="utf-8")
    policy = next(a["content"] for t, a in _elements(page) if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None and policy.startswith("default-src 'none'; img-src data:;")
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_the_script_never_writes_markup(page: Path) -> None:
    html = page.read_text(encoding="utf-8")
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert way not in html


def test_markup_from_a_model_stays_text(evil_page: Path) -> None:
    html = evil_page.read_text(encoding="utf-8")
    assert "document.title=" not in _without_payload(evil_page)
    assert html.count("<script") == 2 and html.count("</script>") == 2
    assert "<img src=x" not in html
    data = payload_of(evil_page)
    assert data["prompt"] == EVIL
    assert all(EVIL in answer["text"] for answer in data["answers"])


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner))


@given(JSON)
def test_data_in_the_page_is_json_without_markup(value: object) -> None:
    text = embedded(page_html({"value": value}))
    assert json.loads(text) == {"value": value}
    assert not set("<>&") & set(text)


@given(st.lists(st.floats(-5, 5, width=32), min_size=1, max_size=50))
def test_packed_maps_are_close(values: list[float]) -> None:
    found = packed(torch.tensor(values))
    steps = torch.frombuffer(bytearray(base64.b64decode(found["bytes"])), dtype=torch.uint8).float()
    unpacked = found["low"] + steps / 255 * (found["high"] - found["low"])
    span = max(values) - min(values)
    # Half a step, and the four digits of the bounds.
    torch.testing.assert_close(unpacked, torch.tensor(values), rtol=1e-3, atol=span / 255 + 5e-3 + 1e-6)


def test_maps_and_facts_of_all_answers(page: Path) -> None:
    data = payload_of(page)
    regular, attention, contrast = data["answers"]
    for answer in data["answers"]:
        maps, count = answer["maps"], len(answer["tokens"])
        assert maps["grids"][0]["height"] == maps["grids"][0]["width"] == 4
        assert maps["attention_layers"] == [2, 3]
        for name in ("similarity", "relevance", "before_mean", "after_mean"):
            assert len(maps[name]) == count
            assert {len(base64.b64decode(packed["bytes"])) for packed in maps[name]} == {16}
        assert {len(step) for step in maps["before"]} == {2}
        assert {len(step) for step in maps["entropy"]} == {4}
    assert regular["maps"]["before"] == regular["maps"]["after"]
    assert attention["fired"]["tokens"] and attention["maps"]["before"] != attention["maps"]["after"]
    fired = next(step for step, token in enumerate(attention["tokens"]) if token["fired"])
    layer = attention["tokens"][fired]["fired"][0]
    assert attention["maps"]["entropy"][fired][layer - 1] > 0.5, "the gate was open because of the layer before"
    assert contrast["cost"]["extra_rows"] == 1


def test_large_pictures_are_made_smaller() -> None:
    shown = image_payload(Image.effect_noise((3000, 1500), 50).convert("RGB"), "noise.png")
    assert (shown["width"], shown["height"]) == (1024, 512)
    assert shown["src"].startswith("data:image/jpeg")
    small = image_payload(Image.new("RGB", (20, 10), "red"), "red.png")
    assert (small["width"], small["height"]) == (20, 10)
    assert small["src"].startswith("data:image/png")
