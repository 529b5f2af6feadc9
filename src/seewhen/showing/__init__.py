"""Showing what happened: the viewer's pages and the paper's figures."""
