"""Every name that a package with a method or a benchmark of its own needs, beside those of `seewhen` itself.

These names are stable: they stay where they are and mean what they mean from one minor version to the next. The
modules they come from are free to change. docs/add-a-method.md and docs/add-a-benchmark.md show how they are used.
"""

from typing import TYPE_CHECKING

from seewhen.lazy import lazy_names

if TYPE_CHECKING:
    from seewhen.backbones.backbone import Backbone as Backbone
    from seewhen.backbones.pixels import Views as Views
    from seewhen.benchmarks.base import Benchmark as Benchmark
    from seewhen.benchmarks.base import Metric as Metric
    from seewhen.benchmarks.base import Options as Options
    from seewhen.benchmarks.base import Row as Row
    from seewhen.benchmarks.base import Sample as Sample
    from seewhen.benchmarks.files import Expected as Expected
    from seewhen.benchmarks.prompts import Style as Style
    from seewhen.benchmarks.records import pick as pick
    from seewhen.benchmarks.records import pick_text as pick_text
    from seewhen.benchmarks.records import read_answers as read_answers
    from seewhen.benchmarks.records import read_records as read_records
    from seewhen.benchmarks.sums import Sum as Sum
    from seewhen.benchmarks.sums import Totals as Totals
    from seewhen.benchmarks.sums import divide as divide
    from seewhen.benchmarks.sums import harmonic_mean as harmonic_mean
    from seewhen.benchmarks.sums import percent as percent
    from seewhen.benchmarks.sums import pool as pool
    from seewhen.benchmarks.yesno import count_answer as count_answer
    from seewhen.benchmarks.yesno import parser_named as parser_named
    from seewhen.benchmarks.yesno import yes_no_metrics as yes_no_metrics
    from seewhen.decoding.altered_images import AlteredImage as AlteredImage
    from seewhen.decoding.aside import Aside as Aside
    from seewhen.decoding.attention_call import AttentionCall as AttentionCall
    from seewhen.decoding.branches import Branch as Branch
    from seewhen.decoding.branches import TextOnly as TextOnly
    from seewhen.decoding.judge import Judge as Judge
    from seewhen.decoding.judge import Newest as Newest
    from seewhen.decoding.judge import Ruling as Ruling
    from seewhen.decoding.method import Logits as Logits
    from seewhen.decoding.method import Method as Method
    from seewhen.decoding.method import Parts as Parts
    from seewhen.decoding.method import Preset as Preset
    from seewhen.decoding.prefill import BranchRows as BranchRows
    from seewhen.decoding.prefill import Prefill as Prefill
    from seewhen.decoding.sequence import CachedSequence as CachedSequence
    from seewhen.decoding.sequence import CurrentStep as CurrentStep
    from seewhen.decoding.sequence import Intervention as Intervention
    from seewhen.decoding.sequence import Step as Step
    from seewhen.equations.contrast import cut as cut
    from seewhen.equations.contrast import log_prob_contrast as log_prob_contrast
    from seewhen.equations.contrast import logit_contrast as logit_contrast
    from seewhen.equations.when import entropy as entropy
    from seewhen.errors import InvalidInput as InvalidInput
    from seewhen.errors import InvalidMethod as InvalidMethod
    from seewhen.errors import UnsupportedMode as UnsupportedMode
    from seewhen.errors import UnsupportedModel as UnsupportedModel
    from seewhen.methods.agla import register_relevance as register_relevance
    from seewhen.methods.parameters import Plausibility as Plausibility

_PUBLIC = {
    "decoding.method": ("Logits", "Method", "Parts", "Preset"),
    "decoding.sequence": ("CurrentStep", "Intervention", "CachedSequence", "Step"),
    "decoding.aside": ("Aside",),
    "decoding.judge": ("Judge", "Newest", "Ruling"),
    "decoding.attention_call": ("AttentionCall",),
    "decoding.prefill": ("Prefill", "BranchRows"),
    "decoding.branches": ("Branch", "TextOnly"),
    "decoding.altered_images": ("AlteredImage",),
    "backbones.backbone": ("Backbone",),
    "backbones.pixels": ("Views",),
    "equations.contrast": ("cut", "log_prob_contrast", "logit_contrast"),
    "equations.when": ("entropy",),
    "methods.parameters": ("Plausibility",),
    "methods.agla": ("register_relevance",),
    "benchmarks.base": ("Benchmark", "Metric", "Options", "Row", "Sample"),
    "benchmarks.files": ("Expected",),
    "benchmarks.prompts": ("Style",),
    "benchmarks.sums": ("Sum", "Totals", "divide", "harmonic_mean", "percent", "pool"),
    "benchmarks.records": ("pick", "pick_text", "read_answers", "read_records"),
    "benchmarks.yesno": ("count_answer", "parser_named", "yes_no_metrics"),
    "errors": ("InvalidInput", "InvalidMethod", "UnsupportedMode", "UnsupportedModel"),
}

__getattr__, __dir__ = lazy_names(__name__, _PUBLIC)
