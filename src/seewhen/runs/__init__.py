"""Benchmark runs: store and resume, engines, statistics, published values, reports, sweeps."""
