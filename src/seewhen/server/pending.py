"""A request on its way: what every kind of request to a model has in common."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

from PIL import Image
from pydantic import BaseModel

from seewhen.server.bell import bell_of
from seewhen.server.failures import ApiError
from seewhen.server.jobs import Delta, Event, Failed, Job, Started
from seewhen.server.media import content
from seewhen.server.settings import Settings


class Mailbox:
    """Carries events from an inference thread to the event loop. Text that lies here is taken in one piece: when
    the loop cannot keep up with all its clients, each gets fewer and longer pieces."""

    def __init__(self) -> None:
        self._bell = bell_of(asyncio.get_running_loop())
        self._events: deque[Event] = deque()
        self._came = asyncio.Event()

    def post(self, event: Event) -> None:
        """From any thread."""
        self._events.append(event)
        if not self._came.is_set():
            self._bell.ring(self._came)

    async def take(self) -> Event:
        """The next event; a failure is raised."""
        while not self._events:
            self._came.clear()
            if not self._events:  # what came before this look has set nothing
                await self._came.wait()
        event = self._events.popleft()
        if isinstance(event, Failed):
            raise event.error
        while isinstance(event, Delta) and self._events and _goes_on(event, self._events[0]):
            more = self._events.popleft()
            assert isinstance(more, Delta)
            log_probs, numbers = event.log_probs + more.log_probs, event.numbers + more.numbers
            event = Delta(event.index, event.text + more.text, log_probs, numbers=numbers)
        return event


def _goes_on(first: Delta, second: Event) -> bool:
    return isinstance(second, Delta) and first.index == second.index and not (first.live or second.live)


class Pending:
    """`started` waits until nothing can be wrong with the request any more."""

    job: Job
    stream = False

    def __init__(self, model: str, give_up: Callable[[Job], None], settings: Settings, name: str) -> None:
        self.model, self._give_up, self.settings, self.id = model, give_up, settings, name
        self.created = int(time.time())
        self.mail = Mailbox()
        self._began = time.monotonic()
        self.deadline = self._began + settings.limits.wall_seconds
        self.prompt_tokens = 0

    async def prepare(self) -> None:
        """Check the request, decode its images, and join the queue."""
        raise NotImplementedError

    async def whole(self) -> BaseModel:
        """The complete response."""
        raise NotImplementedError

    def chunks(self) -> AsyncIterator[BaseModel | bytes]:
        """The pieces of a streamed response, in order; some as the JSON that they are sent as."""
        raise NotImplementedError

    async def opened(self, urls: Sequence[str]) -> list[Image.Image]:
        """The pictures at `urls`, decoded under the limits."""
        limits, pixels = self.settings.limits, 0
        images = []
        for url in urls:
            data = await asyncio.to_thread(content, url, limits, self.settings.fetcher)
            image = await self.settings.darkroom.decoded(data, self.deadline)
            pixels += image.width * image.height
            if pixels > limits.request_pixels:
                message = f"The images have more than {limits.request_pixels:,} pixels together."
                raise ApiError(400, "image_too_large", message, "Make them smaller.", param="messages")
            images.append(image)
        return images

    async def started(self) -> None:
        """Wait for the first token; what was wrong with the request is raised here."""
        event = await self.mail.take()
        assert isinstance(event, Started)
        self.prompt_tokens = event.prompt_tokens
        metrics = self.settings.metrics
        metrics.prompt(event.prompt_tokens)
        metrics.first_token(time.monotonic() - self._began)

    def cancel(self) -> None:
        """The client is gone."""
        if hasattr(self, "job"):
            self._give_up(self.job)

    def over(self) -> None:
        """The last byte is sent."""
        self.settings.metrics.completion(time.monotonic() - self._began)
