"""Serving at scale: what a question costs, and a simulation of many replicas. See docs/serving-at-scale.md."""
