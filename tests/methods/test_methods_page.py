"""docs/methods.md says what the registry says."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def test_the_page_is_up_to_date():
    path = Path(__file__).resolve().parents[2] / "docs" / "methods_page.py"
    spec = importlib.util.spec_from_file_location("methods_page", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written = module.PAGE.read_text(encoding="utf-8")
    assert written == module.page(), "run `make docs`"
    assert "`opera`" in written and "reference_parity" in written
