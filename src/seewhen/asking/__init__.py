"""Asking a model: a method by its name, attached to a model, from pictures and text to answers."""
