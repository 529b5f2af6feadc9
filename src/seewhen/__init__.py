"""See only when needed: fewer hallucinations from vision-language models, without training.

    import seewhen
    with seewhen.attach(model, seewhen.CAI()) as handle:
        output = model.generate(**inputs)
    print(handle.summary())

Names are imported on first use, so that `import seewhen` and the command line stay fast.
"""

from typing import TYPE_CHECKING

from seewhen.lazy import lazy_names, provide

__version__ = "0.2.0.dev0"

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
    "asking.answers": ("Answers", "generate"),
    "backbones.backbone": ("Backbone",),
    "methods.cai": ("CAI",),
    "asking.check": ("Checked", "check"),
    "runs.diagnosis": ("Diagnosis", "diagnose"),
    "asking.handle": ("Handle",),
    "decoding.method": ("Method",),
    "served.remote": ("Remote", "remote"),
    "asking.replay": ("Replay", "replay"),
    "errors": ("SeewhenError",),
    "decoding.trace": ("Trace",),
    "showing.trying": ("Tryout", "try_methods"),
    "asking.attach": ("attach",),
    "backbones.loading": ("load",),
    "methods": ("method", "method_from_json", "method_names"),
    "showing.script": ("page",),
    "backbones.families": ("register_family",),
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
