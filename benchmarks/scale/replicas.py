"""A simulation of replicas that serve one model: what they have cached, what waits, what fails, what dies.

A replica works in steps, as engines with continuous batching do: it takes waiting requests while rows, memory and
the budget of prompt tokens last, reads their prompts less what its prefix cache has, and each row makes a token.
A step lasts as long as its rows and its prompts take on the GPU that was measured (`costs.Clock`).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from scale.costs import BEFORE, Clock, Shape, cached


@dataclass
class Request:
    """A prompt about an image, of which `shared` tokens begin like earlier prompts about it."""

    image: int
    prompt: int
    shared: int
    new: int
    over: Callable[[float, bool], None]  # when, and whether it succeeded
    goes_on: bool = False  # the next prompt about the image begins with this one and its answer
    left: int = 0


@dataclass(frozen=True)
class Machine:
    """What is assumed of a replica."""

    rows: int = 128  # at once
    prompt_tokens: int = 8192  # of one step
    memory: float = 110e9  # bytes for keys and values: 141 GB less weights and a margin
    caches: bool = True
    overhead_ms: float = 0.0  # of the step that takes a request, for each one


@dataclass
class Counts:
    """What all replicas did."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    new_tokens: int = 0
    evicted: int = 0
    failed: int = 0


@dataclass
class Replica:
    """One GPU with the model."""

    shape: Shape
    clock: Clock
    machine: Machine
    counts: Counts
    waiting: deque[Request] = field(default_factory=deque)
    running: list[Request] = field(default_factory=list)
    kept: OrderedDict[int, int] = field(default_factory=OrderedDict)  # image -> tokens in the cache
    rows_of: dict[int, int] = field(default_factory=dict)  # image -> rows that run
    held: int = 0  # tokens of `kept`
    extra: int = 0  # tokens of rows beyond them
    works: bool = False  # a step is under way
    alive: bool = True

    @property
    def load(self) -> int:
        """Requests that are here."""
        return len(self.waiting) + len(self.running)

    def step(self) -> float:
        """Take what fits, read prompts, make a token for each row; how many milliseconds that takes."""
        operations, overhead, budget = 0.0, 0.0, self.machine.prompt_tokens
        while self.waiting and len(self.running) < self.machine.rows:
            request = self.waiting[0]
            known = self._known(request)
            unread = request.prompt - known
            # A prompt longer than the budget is read alone.
            if (unread > budget and budget < self.machine.prompt_tokens) or not self._fits(request):
                break
            self.waiting.popleft()
            budget -= unread
            overhead += self.machine.overhead_ms
            operations += self.shape.read(unread, known) + (0 if known >= self._image else self.shape.tower())
            self._admit(request, known)
        for request in self.running:
            request.left -= 1
        return self.clock.step + self.clock.row * len(self.running) + operations / self.clock.rate + overhead

    def finished(self) -> list[Request]:
        """Rows that have all their tokens leave."""
        done = [request for request in self.running if request.left <= 0]
        self.running = [request for request in self.running if request.left > 0]
        for request in done:
            self._leave(request)
        return done

    def die(self) -> list[Request]:
        """Everything that was here is lost."""
        lost = [*self.running, *self.waiting]
        self.running, self.rows_of, self.held, self.extra = [], {}, 0, 0
        self.waiting.clear()
        self.kept.clear()
        self.alive = False
        return lost

    @property
    def _image(self) -> int:
        return cached(BEFORE + self.shape.image)

    def _known(self, request: Request) -> int:
        if not self.machine.caches:
            return 0
        return cached(min(self.kept.get(request.image, 0), request.shared, request.prompt - 1))

    def _needs(self, request: Request) -> int:
        """Tokens that the request adds to the memory beside what is kept of its image."""
        return (
            request.prompt + request.new - request.shared if self.machine.caches else request.prompt + request.new
        )

    def _fits(self, request: Request) -> bool:
        """Whether there is room; what nobody uses makes room, the oldest first."""
        more = self._needs(request)
        if self.machine.caches:
            more += max(request.shared - self.kept.get(request.image, 0), 0)
        room = self.machine.memory / self.shape.kept_bytes - self.held - self.extra
        for image in list(self.kept) if more > room else ():
            if image not in self.rows_of and image != request.image:
                room += self.kept[image]
                self.held -= self.kept.pop(image)
                self.counts.evicted += 1
                if more <= room:
                    break
        return more <= room or not self.running

    def _admit(self, request: Request, known: int) -> None:
        request.left = request.new
        self.running.append(request)
        self.rows_of[request.image] = self.rows_of.get(request.image, 0) + 1
        self.extra += self._needs(request)
        if self.machine.caches:
            before = self.kept.get(request.image, 0)
            self.kept[request.image] = max(before, request.shared)
            self.kept.move_to_end(request.image)
            self.held += self.kept[request.image] - before
        self.counts.prompt_tokens += request.prompt
        self.counts.cached_tokens += known

    def _leave(self, request: Request) -> None:
        self.extra -= self._needs(request)
        self.rows_of[request.image] -= 1
        if not self.rows_of[request.image]:
            del self.rows_of[request.image]
        if self.machine.caches and request.goes_on:
            self.held += request.prompt + request.new - self.kept[request.image]
            self.kept[request.image] = request.prompt + request.new
        self.counts.requests += 1
        self.counts.new_tokens += request.new
