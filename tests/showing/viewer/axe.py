"""axe-core on a page in the browser: what somebody with a screen reader or a keyboard could not use."""

from __future__ import annotations

import json
from importlib import resources

import pytest

from showing.viewer.browser import Browser


def violations(browser: Browser) -> list[str]:
    """All that axe-core finds wrong with the page as it is now, best practices included."""
    script = resources.files(pytest.importorskip("axe_core_python")).joinpath("axe.min.js")
    browser.run(f"{script.read_text(encoding='utf-8')}; void 0")
    told = browser.run("axe.run(document).then(({ violations }) => JSON.stringify(violations))")
    return [f"{rule['id']}: {node['html'][:160]}" for rule in json.loads(told) for node in rule["nodes"]]
