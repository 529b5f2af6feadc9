"""The study of `confirm` on both packaged models: what it changes, what it costs, what bounds it."""
