"""Spoilt files for every reader of files: see fuzz.py."""
