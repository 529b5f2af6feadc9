"""See only when needed: fewer hallucinations from vision-language models, without training.

    import seewhen
    with seewhen.attach(model, seewhen.CAI()) as handle:
        output = model.generate(**inputs)
    print(handle.summary())

Names are imported on first use, so that `import seewhen` and the command line stay fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seewhen.attach import Handle as Handle
    from seewhen.attach import attach as attach
    from seewhen.backbone import Backbone as Backbone
    from seewhen.errors import SeewhenError as SeewhenError
    from seewhen.families import register_family as register_family
    from seewhen.methods import method as method
    from seewhen.methods import method_from_json as method_from_json
    from seewhen.methods import method_names as method_names
    from seewhen.methods.base import Method as Method
    from seewhen.methods.cai import CAI as CAI
    from seewhen.replay import Replay as Replay
    from seewhen.replay import replay as replay
    from seewhen.trace import Trace as Trace

_PUBLIC = {
    "Backbone": "backbone",
    "CAI": "methods.cai",
    "Handle": "attach",
    "Method": "methods.base",
    "Replay": "replay",
    "SeewhenError": "errors",
    "Trace": "trace",
    "attach": "attach",
    "method": "methods",
    "method_from_json": "methods",
    "method_names": "methods",
    "register_family": "families",
    "replay": "replay",
}

__all__ = [
    "CAI",
    "Backbone",
    "Handle",
    "Method",
    "Replay",
    "SeewhenError",
    "Trace",
    "attach",
    "method",
    "method_from_json",
    "method_names",
    "register_family",
    "replay",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'seewhen' has no attribute {name!r}")
    value = getattr(import_module(f"seewhen.{_PUBLIC[name]}"), name)
    # The submodules `attach` and `replay` share their function's name; the function is what is public.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
