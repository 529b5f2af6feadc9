"""Decoding with a method: hooks and hosted attention, extra rows, one call's own state, its trace."""
