"""The second door: `model.generate(..., custom_generate=FOLDER, trust_remote_code=True)` decodes with seewhen."""

from typing import Any

import seewhen


def generate(model: Any, method: str = "cai", print_summary: bool = False, **kwargs: Any) -> Any:
    """`model.generate(**kwargs)` with `method` attached for the time of the call."""
    with seewhen.attach(model, method) as handle:
        output = model.generate(**kwargs)
    if print_summary:
        print(handle.summary())
    return output
