"""Clients of the simulated replicas: each image is described and confirmed request by request."""

from __future__ import annotations

import heapq
import json
import random
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from scale.costs import AFTER, BEFORE, Clock, Shape
from scale.replicas import Counts, Machine, Replica, Request

CAPTIONS = json.loads(Path(__file__).with_name("captions.json").read_text())
TOKENS_A_WORD = 1.35


@dataclass(frozen=True)
class Scenario:
    """What is simulated."""

    images: int = 4000
    replicas: int = 1
    in_flight: int = 64  # images per replica
    confirm: bool = True
    routing: str = "same"  # all requests of an image to one replica, or "any"
    denied: float = 0.08  # of the questions
    retries: int = 2
    failing: float = 0.001  # of the requests: answered with an error at their end
    dies: float | None = None  # seconds after which the first replica is gone
    boot: float = 360.0  # seconds until it is back
    machine: Machine = Machine()
    seed: int = 0


@dataclass
class World:
    """The clock, the replicas, and what happens next."""

    scenario: Scenario
    shape: Shape
    clock: Clock
    now: float = 0.0
    counts: Counts = field(default_factory=Counts)
    events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    number: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.scenario.seed)
        self.replicas = [
            Replica(self.shape, self.clock, self.scenario.machine, self.counts)
            for _ in range(self.scenario.replicas)
        ]

    def at(self, when: float, what: Callable[[], None]) -> None:
        """`what` happens then."""
        self.number += 1
        heapq.heappush(self.events, (when, self.number, what))

    def run(self) -> None:
        """Until nothing is left to happen."""
        while self.events:
            self.now, _, what = heapq.heappop(self.events)
            what()

    def send(self, request: Request, replica: Replica) -> None:
        """Put a request into a replica's queue."""
        replica.waiting.append(request)
        if not replica.works:
            self._step(replica)

    def _step(self, replica: Replica) -> None:
        replica.works = replica.load > 0 and replica.alive
        if replica.works:
            self.at(self.now + replica.step() / 1e3, lambda: self._stepped(replica))

    def _stepped(self, replica: Replica) -> None:
        if replica.alive:
            for request in replica.finished():
                fails = self.chance.random() < self.scenario.failing
                self.counts.failed += fails
                request.over(self.now, not fails)
            self._step(replica)
        else:
            replica.works = False

    def kill(self, replica: Replica) -> None:
        """It is gone, with all it had; later it comes back with an empty cache."""
        for request in replica.die():
            self.counts.failed += 1
            request.over(self.now, False)

        def back() -> None:
            replica.alive = True
            if not replica.works:
                self._step(replica)

        self.at(self.now + self.scenario.boot, back)


class Image:
    """One image on its way: a sentence, its questions, the next sentence."""

    def __init__(self, world: World, number: int, over: Callable[[Image], None]) -> None:
        self.world, self.number, self.over = world, number, over
        self.sentences = [
            (max(round(words * TOKENS_A_WORD), 1), objects)
            for words, objects in CAPTIONS[world.chance.randrange(len(CAPTIONS))]
        ]
        self.began, self.ended, self.text, self.steps, self.attempts = world.now, 0.0, 0, 0, 0
        self.home: Replica | None = None
        self.prefix = BEFORE + world.shape.image

    def begin(self) -> None:
        """The first request."""
        if not self.world.scenario.confirm:
            self.sentences = [(sum(tokens for tokens, _ in self.sentences), 0)]
        self._sentence()

    def _sentence(self) -> None:
        tokens, _ = self.sentences[0]
        prompt = self.prefix + AFTER + self.text
        self.steps += tokens
        self._ask(prompt, prompt, tokens, self._said, goes_on=True)

    def _said(self) -> None:
        _, objects = self.sentences[0]
        self.open, self.no = objects, False
        if not objects:
            self._ruled()
        for _ in range(objects):
            self._ask(self.prefix + AFTER, self.prefix, 1, self._answered)

    def _answered(self) -> None:
        self.no |= self.world.chance.random() < self.world.scenario.denied
        self.open -= 1
        if not self.open:
            self._ruled()

    def _ruled(self) -> None:
        tokens, objects = self.sentences[0]
        if objects and self.no:
            self.attempts += 1
            if self.attempts > self.world.scenario.retries:
                self._end()
            else:
                self.sentences[0] = (tokens, 1)  # another object in place of the denied one
                self._sentence()
            return
        self.attempts = 0
        self.text += tokens
        self.sentences.pop(0)
        if self.sentences:
            self._sentence()
        else:
            self._end()

    def _end(self) -> None:
        self.ended = self.world.now
        self.over(self)

    def _ask(self, prompt: int, shared: int, new: int, then: Callable[[], None], goes_on: bool = False) -> None:
        def over(now: float, well: bool, failures: int = 0) -> None:
            if well:
                then()
            else:
                wait = min(2.0**failures, 60.0) * (0.5 + self.world.chance.random())
                self.world.at(now + wait, lambda: send(failures + 1))

        def send(failures: int = 0) -> None:
            replica = self._replica()
            if replica is None:
                self.world.at(self.world.now + 1.0, lambda: send(failures))
                return
            request = Request(self.number, prompt, shared, new, lambda n, w: over(n, w, failures), goes_on)
            self.world.send(request, replica)

        send()

    def _replica(self) -> Replica | None:
        living = [replica for replica in self.world.replicas if replica.alive]
        if not living:
            return None
        if self.world.scenario.routing == "any":
            return self.world.chance.choice(living)
        if self.home is None or not self.home.alive:
            self.home = min(living, key=lambda replica: replica.load)
        return self.home


def simulate(scenario: Scenario, shape: Shape, clock: Clock) -> dict[str, Any]:
    """All images of a scenario; rates are of the middle 60 % of them, when all replicas are busy."""
    world = World(scenario, shape, clock)
    done: list[Image] = []
    started = 0

    def start() -> None:
        nonlocal started
        if started < scenario.images:
            started += 1
            Image(world, started, over).begin()

    def over(image: Image) -> None:
        done.append(image)
        start()

    for _ in range(min(scenario.in_flight * scenario.replicas, scenario.images)):
        world.at(0.0, start)
    if scenario.dies is not None:
        world.at(scenario.dies, lambda: world.kill(world.replicas[0]))
    world.run()
    assert len({image.number for image in done}) == len(done) == scenario.images
    middle = done[scenario.images // 5 : scenario.images * 4 // 5]
    seconds = sorted(image.ended - image.began for image in middle)
    counts, images = world.counts, scenario.images
    rate = (len(middle) - 1) / (middle[-1].ended - middle[0].ended) / scenario.replicas
    return {
        "scenario": asdict(scenario),
        "images_per_s_and_gpu": rate,
        "gpu_hours_per_million": 1e6 / rate / 3600,
        "seconds_per_image": {"median": statistics.median(seconds), "p95": seconds[len(seconds) * 95 // 100]},
        "requests_per_image": counts.requests / images,
        "prompt_tokens_per_image": counts.prompt_tokens / images,
        "cached_share": counts.cached_tokens / counts.prompt_tokens,
        "new_tokens_per_image": counts.new_tokens / images,
        "steps_per_token": sum(i.steps for i in done) / max(sum(i.text for i in done), 1),
        "evicted_per_image": counts.evicted / images,
        "failed_requests": counts.failed,
    }
