"""Whether the place of a tilt can matter: `python -m where.study`, hypotheses in README.md."""
