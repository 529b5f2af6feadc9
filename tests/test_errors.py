"""Errors may quote files of strangers."""

from __future__ import annotations

from seewhen.errors import InvalidInput


def test_an_error_is_one_line_that_steers_no_terminal() -> None:
    told = str(InvalidInput("There is no image a\nb\r\x1b[2J\u2028\u202eé日.", "Look\nthere."))
    assert told == "There is no image a\\nb\\r\\x1b[2J\\u2028\\u202eé日. Look\\nthere."
    assert len(str(InvalidInput("a" * 10**6))) < 1300
