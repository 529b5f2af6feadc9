"""Giving new state the old state's addresses, so that a captured step can run on it.

A captured step reads and writes fixed addresses. When the next prompt has the same form, its cache and
its sequence state take over the old tensors: caches when they allocate, everything else by copying.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor
from transformers import StaticCache
from transformers.cache_utils import StaticLayer

from seewhen.decoding.recorder import Recorder
from seewhen.decoding.sequence import CachedSequence

_ROUND = 128  # cache lengths are rounded up, so that captured steps can be used again


class Mismatch(Exception):
    """The new state has another form than the old one: the step must be captured again."""


PLAIN = (int, float, str, bool, type(None), torch.dtype, torch.device)


def adopt(new: Any, old: Any) -> Any:
    """`new` with the values it has at the addresses of `old`; raises Mismatch where forms differ."""
    if type(new) is not type(old):
        raise Mismatch
    if isinstance(new, Tensor):
        return _copied(new, old)
    if isinstance(new, dict):
        if new.keys() != old.keys():
            raise Mismatch
        for name in new:
            new[name] = adopt(new[name], old[name])
        return new
    if isinstance(new, list | tuple):
        if len(new) != len(old):
            raise Mismatch
        return type(new)(adopt(a, b) for a, b in zip(new, old, strict=True))
    if dataclasses.is_dataclass(new) or isinstance(new, Recorder):
        free = _free(new) if isinstance(new, CachedSequence) else set()
        for name, value in vars(new).items():
            if name not in free:
                object.__setattr__(new, name, _field(name, value, vars(old).get(name)))
        return new
    if isinstance(new, PLAIN):
        if new != old:
            raise Mismatch
        return new
    raise Mismatch


SHARED = {"backbone", "interventions", "tables"}  # the session's, the same for all its sequences


def _free(sequence: CachedSequence) -> set[str]:
    """What may differ between prompts because no step reads it."""
    any_length = all(intervention.any_prompt_length for intervention in sequence.interventions)
    free = {"reached", "placement", "forked"}
    return free | {"prompt_length"} if any_length else free


def _field(name: str, new: Any, old: Any) -> Any:
    if name in SHARED:
        if new is not old and new != old:
            raise Mismatch
        return new
    return adopt(new, old)


def _copied(new: Tensor, old: Tensor) -> Tensor:
    if not _alike(new, old):
        raise Mismatch
    if new is not old:
        old.copy_(new)
    return old


def _alike(a: Tensor, b: Tensor) -> bool:
    return (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)


def columns_for(length: int) -> int:
    """Columns of the cache for prompt and answer."""
    return -(-length // _ROUND) * _ROUND


def empty_cache(model: Any, columns: int, before: Any = None) -> Any:
    """A static cache; one that was filled before gives it its tensors."""
    cache = StaticCache(config=model.config.get_text_config(decoder=True), max_cache_len=columns)
    if before is not None:
        adopt_cache(cache, before)
    return cache


def adopt_cache(new: Any, old: Any) -> None:
    """Let each layer of the empty cache `new` take the tensors of `old` when it allocates its own."""
    for layer, source in zip(new.layers, old.layers, strict=True):
        layer.lazy_initialization = _taking_over(layer, source)


def same_addresses(new: Any, old: Any) -> bool:
    """Whether `new` has taken over all tensors of `old`."""
    return all(
        mine is theirs
        for layer, source in zip(new.layers, old.layers, strict=True)
        for mine, theirs in zip(_tensors(layer).values(), _tensors(source).values(), strict=True)
    )


def _tensors(layer: Any) -> dict[tuple[str, Any], Tensor]:
    found: dict[tuple[str, Any], Tensor] = {}
    for name, value in vars(layer).items():
        if isinstance(value, Tensor):
            found[name, None] = value
        elif isinstance(value, dict):
            found.update({(name, key): part for key, part in value.items() if isinstance(part, Tensor)})
    return found


def _taking_over(layer: Any, source: Any) -> Any:
    stock = layer.lazy_initialization

    def lazy_initialization(*args: Any, **kwargs: Any) -> None:
        if type(layer) is type(source) is StaticLayer and _fits(layer, source, *args, **kwargs):
            put_state(layer, state_of(source))
            torch._foreach_zero_([layer.keys, layer.values, layer.cumulative_length])
            return
        stock(*args, **kwargs)
        theirs = _tensors(source)
        for (name, key), mine in _tensors(layer).items():
            old = theirs.get((name, key))
            if old is None or old is mine or not _alike(old, mine):
                continue
            old.zero_()
            if key is None:
                setattr(layer, name, old)
            else:
                getattr(layer, name)[key] = old

    return lazy_initialization


def _fits(layer: Any, source: Any, key_states: Tensor, value_states: Tensor) -> bool:
    """Whether what `layer` would allocate is what `source` holds."""
    return bool(source.is_initialized) and all(
        (held.shape, held.dtype, held.device)
        == ((*new.shape[:2], layer.max_cache_len, new.shape[-1]), new.dtype, new.device)
        for held, new in ((source.keys, key_states), (source.values, value_states))
    )


def state_of(layer: Any) -> dict[str, Any]:
    """What a layer of a cache holds and knows: not the functions that were put in the place of its own."""
    return {
        name: dict(value) if isinstance(value, dict) else value
        for name, value in vars(layer).items()
        if not callable(value)
    }


def put_state(layer: Any, state: dict[str, Any]) -> None:
    """Let `layer` hold and know what another one did."""
    for name, value in state.items():
        setattr(layer, name, dict(value) if isinstance(value, dict) else value)
