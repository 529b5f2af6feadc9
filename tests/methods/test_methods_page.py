"""docs/methods.md and the catalogue say what the registry says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def module():
    path = Path(__file__).resolve().parents[2] / "docs" / "methods_page.py"
    spec = importlib.util.spec_from_file_location("methods_page", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_methods_that_ask_or_try_again_say_what_that_costs(module):
    from seewhen.methods import METHODS, method_class

    asking = [name for name in METHODS.built_in if method_class(name).judges]
    assert "confirm" in asking and set(asking) <= set(module.PASSES)


def test_the_page_is_up_to_date(module):
    written = module.PAGE.read_text(encoding="utf-8")
    assert written == module.page(), "run `make docs`"
    assert "`opera`" in written and "reference_parity" in written
    assert module.CATALOGUE.read_text(encoding="utf-8") == module.catalogue(), "run `make docs`"


def test_the_catalogue_gives_what_the_classes_say():
    from seewhen.decoding.method import parameter_kinds
    from seewhen.decoding.parameter_values import types_of as kinds_of
    from seewhen.methods import METHODS, method_class
    from seewhen.methods.catalogue import describe, described, options_of

    for name in METHODS.built_in:
        cls = method_class(name)
        assert described(name) == describe(cls)
        for parameter, kind in parameter_kinds(cls).items():
            assert options_of(name, parameter) in ((), kinds_of(kind)), (name, parameter)
