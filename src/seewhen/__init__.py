"""See only when needed: fewer hallucinations from vision-language models, without training.

    import seewhen
    with seewhen.attach(model, seewhen.CAI()) as handle:
        output = model.generate(**inputs)
    print(handle.summary())

Names are imported on first use, so that `import seewhen` and the command line stay fast.
"""

from typing import TYPE_CHECKING

from seewhen.lazy import lazy_names, provide

__version__ = "0.1.0"

if TYPE_CHECKING:
    from seewhen.asking.answers import Answers as Answers
    from seewhen.asking.answers import generate as generate
    from seewhen.asking.attach import attach as attach
    from seewhen.asking.check import Checked as Checked
    from seewhen.asking.check import check as check
    from seewhen.asking.handle import Handle as Handle
    from seewhen.asking.replay import Replay as Replay
    from seewhen.asking.replay import replay as replay
    from seewhen.backbones.backbone import Backbone as Backbone
    from seewhen.backbones.families import register_family as register_family
    from seewhen.backbones.loading import load as load
    from seewhen.decoding.method import Method as Method
    from seewhen.decoding.trace import Trace as Trace
    from seewhen.errors import SeewhenError as SeewhenError
    from seewhen.methods import method as method
    from seewhen.methods import method_from_json as method_from_json
    from seewhen.methods import method_names as method_names
    from seewhen.methods.cai import CAI as CAI
    from seewhen.runs.diagnosis import Diagnosis as Diagnosis
    from seewhen.runs.diagnosis import diagnose as diagnose
    from seewhen.served.remote import Remote as Remote
    from seewhen.served.remote import remote as remote
    from seewhen.showing.script import page as page
    from seewhen.showing.trying import Tryout as Tryout
    from seewhen.showing.trying import try_methods as try_methods

_PUBLIC = {
    "Answers": "asking.answers",
    "Backbone": "backbones.backbone",
    "CAI": "methods.cai",
    "Checked": "asking.check",
    "Diagnosis": "runs.diagnosis",
    "Handle": "asking.handle",
    "Method": "decoding.method",
    "Remote": "served.remote",
    "Replay": "asking.replay",
    "SeewhenError": "errors",
    "Trace": "decoding.trace",
    "Tryout": "showing.trying",
    "attach": "asking.attach",
    "check": "asking.check",
    "diagnose": "runs.diagnosis",
    "generate": "asking.answers",
    "load": "backbones.loading",
    "method": "methods",
    "method_from_json": "methods",
    "method_names": "methods",
    "page": "showing.script",
    "register_family": "backbones.families",
    "remote": "served.remote",
    "replay": "asking.replay",
    "try_methods": "showing.trying",
}

__all__ = [
    "CAI",
    "Answers",
    "Backbone",
    "Checked",
    "Diagnosis",
    "Handle",
    "Method",
    "Remote",
    "Replay",
    "SeewhenError",
    "Trace",
    "Tryout",
    "attach",
    "check",
    "diagnose",
    "generate",
    "load",
    "method",
    "method_from_json",
    "method_names",
    "page",
    "register_family",
    "remote",
    "replay",
    "try_methods",
]


__getattr__, __dir__ = lazy_names(__name__, _PUBLIC)
# Answers, traces and check results show themselves; they lie in rooms that know nothing of pages.
provide(page="showing.script", notebook_html="showing.script")
