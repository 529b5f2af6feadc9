"""One picture, one question, put to a served model: as `asking/one_picture.py` does with a local one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from seewhen.asking.one_picture import Begin, Cost, MakeStreamer, Reply
from seewhen.asking.options import Decoding
from seewhen.decoding.method import Method
from seewhen.methods.grammar import label
from seewhen.served.offers import user
from seewhen.served.pictures import image_part
from seewhen.served.remote import Remote, check_served


@dataclass(frozen=True)
class ServedQuestion:
    """A served model with one question about one picture. Of what happens inside it nothing is known."""

    remote: Remote
    image: Image.Image
    question: str
    decoding: Decoding
    asker: None = None

    def check(self, method: Method) -> None:
        """Raises where the method cannot be used with a served model."""
        check_served(method)

    def answers(self, chosen: Sequence[Method], begin: Begin, say: Callable[[str], None]) -> Iterator[Reply]:
        """One after the other."""
        for method in chosen:
            yield self.answer(method, full=True, streamer=begin(method, None))

    def answer(self, chosen: Method, *, full: bool, streamer: MakeStreamer | None = None) -> Reply:
        """Ask once."""
        content: list[dict[str, Any]] = [image_part(self.image), {"type": "text", "text": self.question}]
        found = self.remote.answer([user(*content)], chosen, self.decoding)
        notes = found.notes if streamer is None else ("not streamed: the model is served elsewhere", *found.notes)
        return Reply(label(chosen), chosen, found.text, None, notes, found.told)

    def costs(self, methods: Sequence[Method]) -> list[Cost] | None:
        """A server's time is not ours to measure."""
        return None
