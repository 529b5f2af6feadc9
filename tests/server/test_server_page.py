"""docs/server.md lists what the server has: its limits, routes, metrics and error codes."""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path

import httpx2
from loopback import Running

import seewhen
from seewhen.server.limits import Limits

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "server.md").read_text(encoding="utf-8")


def test_documentation_lists_all_limits() -> None:
    for field in dataclasses.fields(Limits):
        shown = re.search(rf"^\| `{field.name}` \| ([\d,]+)( MiB)? \|", PAGE, re.M)
        assert shown, field.name
        assert int(shown[1].replace(",", "")) << (20 if shown[2] else 0) == field.default


def test_routes_and_metrics_are_those_of_a_server(server: Running) -> None:
    paths = httpx2.get(f"{server.url}/openapi.json").json()["paths"]
    assert not [path for path in paths if f"{path.split('{')[0]}" not in PAGE]
    metrics = re.findall(r"^# TYPE (seewhen_\w+)", httpx2.get(f"{server.url}/metrics").text, re.M)
    assert set(re.findall(r"`(seewhen_\w+)", PAGE)) == set(metrics)


def test_error_codes_are_those_of_the_source() -> None:
    """Every code that is written down as one; nobody is there to read of a client that went away."""
    calls = [
        node
        for path in (Path(seewhen.__file__).parent / "server").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "ApiError" and len(node.args) > 1
    ]
    codes = {
        inner.value
        for call in calls
        for inner in ast.walk(call.args[1])
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str)
    }
    assert len(codes) > 25 and not [code for code in codes - {"client_gone"} if f"`{code}`" not in PAGE]
