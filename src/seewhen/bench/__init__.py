"""Benchmarks: samples, prompts, parsers and scorers for POPE, CHAIR, MME and AMBER.

Nothing here needs torch. Every benchmark follows one small protocol (`Benchmark` in `base.py`), so that
a run, a bootstrap and a table need to know no benchmark by name.
"""

from __future__ import annotations

from seewhen.bench.base import Benchmark, Row, Sample, Score, add_up
from seewhen.bench.registry import NAMES, load

__all__ = ["NAMES", "Benchmark", "Row", "Sample", "Score", "add_up", "load"]
