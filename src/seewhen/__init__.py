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
    from seewhen.answering import Answers as Answers
    from seewhen.answering import generate as generate
    from seewhen.attaching import Handle as Handle
    from seewhen.attaching import attach as attach
    from seewhen.backbone import Backbone as Backbone
    from seewhen.errors import SeewhenError as SeewhenError
    from seewhen.families import register_family as register_family
    from seewhen.loading import load as load
    from seewhen.methods import method as method
    from seewhen.methods import method_from_json as method_from_json
    from seewhen.methods import method_names as method_names
    from seewhen.methods.base import Method as Method
    from seewhen.methods.cai import CAI as CAI
    from seewhen.replaying import Replay as Replay
    from seewhen.replaying import replay as replay
    from seewhen.trace import Trace as Trace

_PUBLIC = {
    "Answers": "answering",
    "Backbone": "backbone",
    "CAI": "methods.cai",
    "Handle": "attaching",
    "Method": "methods.base",
    "Replay": "replaying",
    "SeewhenError": "errors",
    "Trace": "trace",
    "attach": "attaching",
    "generate": "answering",
    "load": "loading",
    "method": "methods",
    "method_from_json": "methods",
    "method_names": "methods",
    "register_family": "families",
    "replay": "replaying",
}

__all__ = [
    "CAI",
    "Answers",
    "Backbone",
    "Handle",
    "Method",
    "Replay",
    "SeewhenError",
    "Trace",
    "attach",
    "generate",
    "load",
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
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
