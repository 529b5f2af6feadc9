"""Every ceiling of the server, in one place. All can be set with `seewhen serve --limit name=value`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from seewhen.errors import InvalidInput

MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """What one request, and all together, may ask for. Sizes are in bytes unless their name says otherwise."""

    # of an answer
    max_tokens: int = 1024
    default_tokens: int = 256  # where a request does not say
    n: int = 8
    num_beams: int = 8
    trace_tokens: int = 256  # of an answer with its full trace, whose maps are large
    # of a prompt
    context_tokens: int = 8192  # with the answer and all image tokens; or the model's own context, if smaller
    text_characters: int = 32_768
    messages: int = 64
    images: int = 8
    image_bytes: int = 10 * MIB
    image_pixels: int = 40_000_000
    request_pixels: int = 100_000_000  # of all images of a request together
    image_side: int = 16_384
    image_min_side: int = 8
    image_aspect: int = 100  # longer side over shorter side
    image_seconds: int = 10  # for an image to be decoded
    fetch_seconds: int = 5  # for an image from an allowed host
    # of a connection
    body_bytes: int = 16 * MIB
    bodies_bytes: int = 512 * MIB  # all request bodies that are being read or answered
    header_seconds: int = 10  # for the headers of a request to arrive
    read_seconds: int = 60  # for its body to arrive
    write_seconds: int = 30  # for a client to take what was written
    connections: int = 1024  # or three quarters of the files the system lets us open, if fewer
    requests: int = 512  # that are being answered
    # of the work
    queue: int = 128  # requests that wait
    queue_bytes: int = 1024 * MIB  # decoded images that wait
    wall_seconds: int = 120  # from arrival to the last token
    slots: int = 32  # answers of one method at once, where they join and leave captured steps
    slots_mib: int = 0  # memory for all of them; 0: four fifths of what is free at the first request
    read_together: int = 4  # prompts that are read in one pass; 1: an answer has the same bits in any company
    batch_rows: int = 16
    batch_wait_ms: int = 5  # how long an idle model waits for company for the first request

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            least = 0 if field.name in ("queue", "batch_wait_ms", "slots_mib") else 1
            if getattr(self, field.name) < least:
                raise InvalidInput(f"The limit {field.name} must be {least} or more.", "")
        if self.n > self.batch_rows:
            raise InvalidInput(
                f"n={self.n} answers do not fit into a batch of {self.batch_rows} rows.",
                "Raise batch_rows or lower n.",
            )


def limits_of(pairs: Sequence[str]) -> Limits:
    """The limits with some replaced: each of `pairs` is `name=value`."""
    known = {field.name for field in dataclasses.fields(Limits)}
    values: dict[str, int] = {}
    for pair in pairs:
        name, _, text = pair.partition("=")
        name = name.strip().replace("-", "_")
        if name not in known:
            raise InvalidInput(f"There is no limit {name!r}.", f"Limits: {', '.join(sorted(known))}.")
        try:
            values[name] = int(text.replace("_", ""))
        except ValueError:
            raise InvalidInput(f"{pair!r} is not name=number.", "For example: --limit queue=64") from None
    return Limits(**values)
