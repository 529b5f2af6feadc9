"""One check: the objects of a text, put to the model as yes/no questions about an image."""

from __future__ import annotations

import asyncio

from PIL import Image

from seewhen.asking.check import Checker, Inquiry
from seewhen.errors import SeewhenError
from seewhen.server import replies
from seewhen.server.engine import Engine
from seewhen.server.failures import ApiError
from seewhen.server.jobs import Done, Finished, Job
from seewhen.server.pending import Pending
from seewhen.server.sampling import Sampling
from seewhen.server.schema import CheckRequest
from seewhen.server.settings import Settings

_ONE_TOKEN = Sampling(temperature=0.0, top_p=1.0, seed=0)


class Inspection(Pending):
    """A check on its way. A text without objects needs no model."""

    def __init__(self, request: CheckRequest, engine: Engine, settings: Settings, request_id: str) -> None:
        super().__init__(engine.name, engine.cancel, settings, f"check-{request_id}")
        self.request, self.engine = request, engine

    async def prepare(self) -> None:
        """Read the text, decode the image, and join the queue."""
        limit = self.settings.limits.text_characters
        if len(self.request.text) > limit:
            message = f"The text has {len(self.request.text):,} characters."
            raise ApiError(400, "limit_exceeded", message, f"At most {limit:,}.", param="text")
        self.engine.check()
        try:
            self._checker, self._inquiry = await asyncio.to_thread(self._read)
        except SeewhenError as error:  # another language, a model that cannot be asked
            raise ApiError(400, "invalid_request", error.message, error.hint, param="text") from None
        images = await self.opened([self.request.image_url.url])
        if self._inquiry.objects:
            self.job = self._job(images)
            self.engine.submit(self.job)

    def _read(self) -> tuple[Checker, Inquiry]:
        asked, decoder = self.request, self.engine.decoder
        tokenizer = self.engine.prompter.tokenizer
        checker = Checker(decoder.asker, asked.lexicon, asked.verdict, asked.threshold, tokenizer=tokenizer)
        return checker, Inquiry.of(asked.text, checker.words.lexicon)

    def _job(self, images: list[Image.Image]) -> Job:
        method = self._checker.questions(self._inquiry.objects)
        return Job(
            id=self.id,
            prompt=self._checker.prompt(self._inquiry.objects),
            images=tuple(images),
            method=method,
            fingerprint=method.fingerprint,
            sampling=_ONE_TOKEN,
            n=1,
            max_tokens=1,
            deadline=self.deadline,
            post=self.mail.post,
        )

    async def started(self) -> None:
        """At once where nothing is asked."""
        if self._inquiry.objects:
            await super().started()

    async def whole(self) -> replies.CheckReply:
        """The verdicts."""
        odds: dict[str, float] = {}
        while self._inquiry.objects and not isinstance(event := await self.mail.take(), Done):
            if isinstance(event, Finished) and event.told is not None:
                odds = dict(zip(self._inquiry.objects, event.told["odds"], strict=True))
        checked = self._inquiry.judged(odds, self._checker.standard)
        return replies.CheckReply(id=self.id, created=self.created, model=self.model, **checked.to_json())
