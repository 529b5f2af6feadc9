"""Training photographs of the shards that are there; later ones are decoded beside the training and taken up."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from photographs import holdout
from photographs.loop import Log
from photographs.photos import Photos
from seewhen.errors import InvalidInput

Loaded = tuple[Photos, Tensor]  # with labels (n, objects)


class Growing:
    """What can be drawn from now. `load` turns shards into photographs, `labels` numbers into objects."""

    def __init__(
        self, store: Path, load: Callable[[list[Path]], Photos], labels: Callable[[Tensor], Tensor], log: Log
    ) -> None:
        self._store, self._load, self._labels, self._log = store, load, labels, log
        self._shards: list[Path] = []  # taken up, or on the way
        self._coming: Future[Loaded] | None = None
        self._aside = ThreadPoolExecutor(1)
        self.photos = Photos(torch.zeros(0, dtype=torch.long), torch.zeros(0))
        self.labels = torch.zeros(0)
        self.grow()

    def look(self) -> None:
        """Take up what has been decoded meanwhile, and begin with shards that are new. Does not wait."""
        if self._coming is not None and self._coming.done():
            self._take()
        if self._coming is None:
            self._begin()

    def grow(self) -> None:
        """Take up all that is there."""
        while self._coming is not None or self._begin():
            self._take()

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        chosen = torch.randint(0, len(self.photos), (size,), device=self.labels.device)
        return self.photos.pixels[chosen], self.labels[chosen]

    def _begin(self) -> bool:
        new = [p for p in sorted(self._store.glob("train-*.safetensors")) if p not in self._shards]
        if new:
            self._shards += new
            self._coming = self._aside.submit(self._read, new)
        return bool(new)

    def _read(self, shards: list[Path]) -> Loaded:
        more = self._load(shards)
        tested = frozenset().union(*holdout.read().values())
        if any(number in tested for number in more.numbers.tolist()):
            raise InvalidInput("A training shard holds held-out photographs.", "Make the shards again.")
        return more, self._labels(more.numbers)

    def _take(self) -> None:
        assert self._coming is not None
        coming, self._coming = self._coming, None
        more, labels = coming.result()
        if len(self.photos):
            more = Photos(
                torch.cat([self.photos.numbers, more.numbers]), torch.cat([self.photos.pixels, more.pixels])
            )
            labels = torch.cat([self.labels, labels])
        self.photos, self.labels = more, labels
        self._log(note="photographs", shards=len(self._shards), photographs=len(more))
