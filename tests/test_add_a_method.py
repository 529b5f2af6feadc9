"""docs/add-a-method.md does what it says: its package is made, found by its entry points, and used."""

from __future__ import annotations

from pathlib import Path

import pytest

from pages import install, run


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    files = install("add-a-method.md", folder)
    package = {f"seewhen_doubt/{name}.py" for name in ("__init__", "feedback", "guard")}
    assert set(files) == {"pyproject.toml", "use.py", *package}
    return folder


@pytest.mark.slow
def test_the_page(site: Path) -> None:
    """The example runs as printed, and its methods keep the promises the page names."""
    prelude = "import tiny\nmodel, inputs = tiny.model('{0}'), tiny.inputs('{0}', rows=2)\n"
    promises = """
import promises as p
import torch
from seewhen_doubt import Doubt
from seewhen_doubt.guard import Guard
p.check_off("llava", Doubt(strength=0.0))
p.check_off("llava", Guard(floor=0.0))
with torch.inference_mode():
    second = model(**inputs).logits[:, -1].topk(2).indices[:, 1]
with seewhen.attach(model, Guard(floor=1.0)):  # every first choice is taken back
    answer = model.generate(**inputs, max_new_tokens=3, do_sample=False)
assert answer.shape[1] == inputs["input_ids"].shape[1] + 3
assert torch.equal(answer[:, -3], second), (answer[:, -3:], second)
for family in ("llava", "qwen2_5_vl"):
    for promised in (Doubt(), method):
        p.check_batch(family, promised)
        p.check_acts(family, promised)
        p.check_beams(family, promised)
p.check_static_cache("llava", method)
p.check_compiled("llava", method)

assert {"doubt", "feedback", "guard"} <= set(seewhen.method_names())
for wrong in (lambda: seewhen.method("doubt", strength=-1),
              lambda: seewhen.attach(model, "feedback").__enter__()):
    try:
        wrong()
    except seewhen.SeewhenError as error:
        print(error)
"""
    out = run(site, prelude.format("llava") + (site / "use.py").read_text() + promises)
    assert out.splitlines()[0] == "feedback: 16 tokens in 2 rows"
    assert "strength=-1.0 is negative" in out.splitlines()[-2] and "register_painter" in out.splitlines()[-1]
