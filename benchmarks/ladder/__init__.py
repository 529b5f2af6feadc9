"""A ladder of small LLaVAs: how a model was made, and when a method helps it. See README.md."""
