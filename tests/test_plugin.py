"""`seewhen.plugin`: every name is there, and the pages for authors import from nowhere else."""

from __future__ import annotations

import ast
import inspect
from itertools import chain

import pytest

import seewhen
from pages import files_of
from seewhen import plugin


@pytest.mark.parametrize("module", [seewhen, plugin], ids=["seewhen", "seewhen.plugin"])
def test_lazy_names_are_those_for_type_checkers(module) -> None:
    typed = {
        (node.module.removeprefix("seewhen."), alias.asname)
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.ImportFrom) and node.module != "seewhen.lazy"
        for alias in node.names
        if alias.asname
    }
    assert typed == {(home, name) for home, names in module._PUBLIC.items() for name in names}
    for name in chain(*module._PUBLIC.values()):
        assert getattr(module, name) is not None and name in dir(module)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = module.nonsense


@pytest.mark.parametrize("page", ["add-a-method.md", "add-a-benchmark.md"])
def test_authors_need_the_stable_names_only(page: str) -> None:
    for name, text in files_of(page).items():
        if not name.endswith(".py"):
            continue
        for node in ast.walk(ast.parse(text)):
            modules = [node.module] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for module in modules:
                assert not (module or "").startswith("seewhen.") or module == "seewhen.plugin", (name, module)
