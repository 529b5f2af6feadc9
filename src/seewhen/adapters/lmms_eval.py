"""Every method of seewhen as a model of lmms-eval, found through its entry-point group.

    lmms-eval --model seewhen --model_args pretrained=llava-hf/llava-1.5-7b-hf,method=cai,contrast=3 --tasks pope

Method parameters are model arguments on purpose: lmms-eval's response cache keys on those, and a
parameter hidden among generation options would be answered from another method's cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from lmms_eval.api.model import lmms
from lmms_eval.models.registry_v2 import ModelManifest

from seewhen.asking.answers import generate
from seewhen.backbones.loading import load
from seewhen.errors import InvalidInput, UnsupportedMode
from seewhen.methods import method as make_method
from seewhen.methods.grammar import read_setting

MANIFEST = ModelManifest(model_id="seewhen", simple_class_path=f"{__name__}.Seewhen")

# lmms-eval's names of generation options that transformers knows, and what it means by them.
_OPTIONS = ("max_new_tokens", "temperature", "top_p", "top_k", "num_beams", "do_sample")
_TOKENS = 128


class Seewhen(lmms):
    """A transformers vision-language model with a seewhen method attached."""

    is_simple = True

    def __init__(
        self,
        pretrained: str = "packaged",
        method: str = "cai",
        batch_size: int | str = 1,
        device: str | None = None,
        dtype: str = "auto",
        revision: str | None = None,
        device_map: str | None = None,
        quantization: str | None = None,
        adapter: str | None = None,
        **parameters: Any,
    ) -> None:
        """`method` as everywhere (`cai:paper`); what is not named here is a parameter of the method."""
        super().__init__()
        made = make_method(method)
        values = [read_setting(made, k, v) if isinstance(v, str) else (k, v) for k, v in parameters.items()]
        self.method = make_method(made, **dict(values))
        how = {"revision": revision, "device_map": device_map, "quantization": quantization, "adapter": adapter}
        given = {name: value for name, value in how.items() if value is not None}
        self.model, self.processor = load(pretrained, device=device, dtype=dtype, **given)
        self.batch_size = int(batch_size)

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Answer all requests, in batches of those with the same options; order is kept."""
        answers: list[str] = [""] * len(requests)
        for indices in _batches(requests, self.batch_size):
            texts, images = zip(*(self._prompt(requests[i].args) for i in indices), strict=True)
            options = dict(requests[indices[0]].args[1] or {})
            until = options.pop("until", None) or []
            chosen = _generation_options(options)
            found = generate(self.model, self.processor, list(images), list(texts), self.method, **chosen)
            for i, text in zip(indices, found.texts, strict=True):
                answers[i] = _cut(text, [until] if isinstance(until, str) else until)
                self.cache_hook.add_partial("generate_until", (requests[i].args[0], options), answers[i])
        return answers

    def _prompt(self, arguments: Sequence[Any]) -> tuple[str, list[Any]]:
        text, _, doc_to_visual, doc_id, task, split = arguments
        pictures = list(_flat(doc_to_visual(self.task_dict[task][split][doc_id])))
        if any(isinstance(picture, str) for picture in pictures):
            raise InvalidInput(f"Task {task} gives videos or paths.", "This adapter takes images.")
        return text.replace("<image>", "").strip(), pictures

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """Not offered: a decoding method acts on what is generated."""
        raise UnsupportedMode(
            "Tasks that compare likelihoods are not answered by a decoding method.", "Choose a generative task."
        )

    def generate_until_multi_round(self, requests: Sequence[Any]) -> list[str]:
        """Not offered: each round would need the images of the rounds before."""
        raise UnsupportedMode("Tasks of several rounds are not supported.", "Choose a single-round task.")


def _batches(requests: Sequence[Any], size: int) -> Iterable[list[int]]:
    """Indices of requests with equal options, at most `size` at a time."""
    groups: dict[str, list[int]] = {}
    for index, request in enumerate(requests):
        groups.setdefault(repr(sorted((request.args[1] or {}).items())), []).append(index)
    for indices in groups.values():
        for start in range(0, len(indices), size):
            yield indices[start : start + size]


def _generation_options(options: dict[str, Any]) -> dict[str, Any]:
    chosen = {name: options[name] for name in _OPTIONS if options.get(name) is not None}
    chosen.setdefault("max_new_tokens", _TOKENS)
    # lmms-eval says "greedy" by temperature 0, which transformers does not take.
    if not chosen.get("temperature"):
        chosen.pop("temperature", None)
        chosen["do_sample"] = False
    elif "do_sample" not in chosen:
        chosen["do_sample"] = True
    if not chosen["do_sample"]:
        for name in ("temperature", "top_p", "top_k"):
            chosen.pop(name, None)
    else:
        chosen.setdefault("top_k", 0)  # transformers would fill in 50
    return chosen


def _cut(text: str, until: Sequence[str]) -> str:
    for stop in until:
        if stop:
            text = text.split(stop)[0]
    return text.strip()


def _flat(visual: Any) -> Iterable[Any]:
    if isinstance(visual, list | tuple):
        for part in visual:
            yield from _flat(part)
    elif visual is not None:
        yield visual
