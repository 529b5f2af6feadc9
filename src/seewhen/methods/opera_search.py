"""OPERA's decoding loop: a beam search whose candidates are rows of one forward pass.

Each step feeds the candidates of all beams at once. The row of a candidate that is chosen already is its beam's
next state, so a step costs one pass over `beams * candidates` rows. Going back feeds the prefix again, token by
token, after the prompt's cache; no other cache is kept. The prompts of a batch share every pass, whether they try
candidates or read a prefix again (`opera_rows.py`); what has the size of the vocabulary is computed for all of
them at once, and each one's own bookkeeping (`opera_beams.py`) is done on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import DynamicCache

from seewhen.decoding.calls import option
from seewhen.decoding.sequence import ATTRIBUTE, CachedSequence
from seewhen.errors import UnsupportedMode
from seewhen.methods.opera_beams import FAR, BeamChoice, BeamSettings, FinishedBeam, Search, Snapshot
from seewhen.methods.opera_columns import AttentionWatch, OverTrust, Watched, strongest_column
from seewhen.methods.opera_rows import Rows, prompts_at_once

if TYPE_CHECKING:
    from seewhen.decoding.session import Session


@dataclass(frozen=True)
class Searches:
    """All prompts of a batch, step by step."""

    method: OverTrust
    settings: BeamSettings
    prompts: Tensor  # (prompts, length), token ids
    processors: Any
    criteria: Any
    rows: Rows

    def run(self, numbers: Iterable[int]) -> list[Search]:
        """Finished searches for the prompts `numbers`."""
        beams = self.settings.beams
        scores = torch.full((beams,), -1e9)
        scores[0] = 0.0
        start = Snapshot(torch.zeros(beams, 0, dtype=torch.long), scores, ())
        searches = [
            Search(self.method, self.settings, n, start, torch.full((beams,), self.rows.prompt(n)))
            for n in numbers
        ]
        while live := [search for search in searches if not search.done]:
            self.step([s for s in live if s.tries], [s for s in live if not s.tries])
        return searches

    def step(self, trying: list[Search], reading: list[Search]) -> None:
        """One pass: candidates for some, the next known token for the others; then all choices that are due."""
        best = self.candidates(trying)
        tokens = torch.cat([best.flatten(), *(search.ahead.pop(0) for search in reading)])
        repeats = torch.tensor([best.shape[-1]] * len(trying) + [1] * len(reading), dtype=torch.long)
        searches, beams = trying + reading, self.settings.beams
        each = repeats.repeat_interleave(beams)
        parents = torch.cat([search.rows for search in searches]).repeat_interleave(each)
        prompts = torch.tensor([search.prompt for search in searches]).repeat_interleave(repeats * beams)
        fed = torch.tensor([search.fed for search in searches]).repeat_interleave(repeats * beams)
        logits = self.logits_of(trying)  # before the pass, which has others
        self.rows.feed(parents, tokens, prompts, fed, self.method.scale)
        first = best.numel()
        for place, search in enumerate(reading):
            search.rows = first + place * beams + torch.arange(beams)
            search.fed += 1
        due: list[tuple[Search, Tensor]] = []
        if trying:
            penalty = self.penalty(best, prompts[:first], fed[:first], trying)
            penalised = self.penalised(logits, best, penalty)
        places: dict[int, int] = {}
        for place, search in enumerate(trying):
            back = search.rollback_position()
            if back is None:
                places[len(due)] = place
                due.append((search, penalised[place]))
            else:
                search.go_back(back, self.rows)
        for search in searches:
            if search.back is not None and not search.ahead:
                due.append((search, search.without_forbidden(self.rows.logits[search.rows], search.back)))
        for number, (search, choice) in enumerate(self.choose(due)):
            if number in places:
                place = places[number]
                search.take(choice, best[place], place * best[place].numel(), self.rows)
            else:
                search.rows, search.ahead, search.back = search.rows[choice.beams], [choice.tokens], None

    def logits_of(self, searches: list[Search]) -> Tensor:
        """What the model says comes next: (searches, beams, vocabulary)."""
        logits, beams = self.rows.logits, self.settings.beams
        index = torch.cat([torch.zeros(0, dtype=torch.long), *(search.rows for search in searches)])
        return logits[index.to(logits.device)].view(len(searches), beams, logits.shape[1])

    def candidates(self, searches: list[Search]) -> Tensor:
        """The tokens to try: (searches, beams, candidates)."""
        logits = self.logits_of(searches)
        return logits.topk(min(self.method.candidates, logits.shape[-1]), dim=-1).indices.cpu()

    def penalty(self, best: Tensor, prompts: Tensor, fed: Tensor, searches: list[Search]) -> Tensor:
        """Of each candidate; also notes the strongest columns."""
        count, logs = best.numel(), self.rows.logs
        behind = torch.arange(logs.shape[1] - 1, -1, -1, device=logs.device)  # of each column: how far back it is
        lengths = fed.to(logs.device)[:, None]
        phi, column = strongest_column(logs[:count], self.method.reference_parity, behind <= lengths)
        column = column - (logs.shape[1] - 1) + lengths[:, 0]
        modes = column.view(best.shape).cpu().mode(dim=-1).values
        for search, mode in zip(searches, modes, strict=True):
            search.history.append(mode)
        image = -self.rows.on_image(count, prompts, fed)
        early = (lengths[:, 0] + 1 <= self.method.warmup).to(phi.device)
        return torch.where(early, image.to(phi.device), phi).view(best.shape)

    def penalised(self, logits: Tensor, best: Tensor, penalty: Tensor) -> Tensor:
        """Logits of the candidates minus their penalty; all other tokens far below."""
        best = best.to(logits.device)
        kept = logits.gather(-1, best) - self.method.weight * penalty.to(logits.device)
        floor = torch.full_like(kept[..., :1], -FAR)
        if not self.method.reference_parity:
            floor = kept.amin(dim=-1, keepdim=True) - FAR
        return floor.expand_as(logits).scatter(-1, best, kept)

    def choose(self, due: list[tuple[Search, Tensor]]) -> list[tuple[Search, BeamChoice]]:
        """An ordinary beam search step of each, by the logits (beams, vocabulary) beside it, in their order."""
        chosen: dict[int, BeamChoice] = {}
        order = sorted(range(len(due)), key=lambda number: due[number][0].snapshot.length)
        # Processors and stopping criteria want token ids, which have one length at a time.
        for _, group in groupby(order, key=lambda number: due[number][0].snapshot.length):
            numbers = list(group)
            searches = [due[number][0] for number in numbers]
            logits = torch.stack([due[number][1] for number in numbers])
            for number, choice in zip(numbers, self.choose_together(searches, logits), strict=True):
                chosen[number] = choice
        return [(search, chosen[number]) for number, (search, _) in enumerate(due)]

    def choose_together(self, searches: list[Search], logits: Tensor) -> Iterable[BeamChoice]:
        """The same for searches of one length."""
        count, beams, words = logits.shape
        log_probs = torch.log_softmax(logits, dim=-1)
        if len(self.processors):
            ids = self.with_prompts(searches, [search.snapshot.tokens for search in searches])
            log_probs = self.processors(ids, log_probs.flatten(0, 1)).view_as(logits)
        scores = torch.stack([search.snapshot.scores for search in searches]).to(logits.device)
        total = (log_probs + scores[..., None]).view(count, -1)
        # Each beam can finish in `ends` ways: these are enough that `beams` continuations are unfinished.
        best = total.topk(min(max(2, 1 + self.settings.ends) * beams, total.shape[1]), dim=-1)
        top, index = best.values.cpu(), best.indices.cpu()
        parents, tokens = index // words, index % words
        grown = [
            torch.cat([search.snapshot.tokens[mine], new[:, None]], dim=1)
            for search, mine, new in zip(searches, parents, tokens, strict=True)
        ]
        stops = self.criteria(self.with_prompts(searches, grown), None).view(count, -1).cpu()
        return [
            search.settle(top[i], parents[i], tokens[i], grown[i], stops[i]) for i, search in enumerate(searches)
        ]

    def with_prompts(self, searches: list[Search], tokens: list[Tensor]) -> Tensor:
        """Full token ids, as processors and stopping criteria want them."""
        prompts = self.prompts[[search.prompt for search in searches]].repeat_interleave(len(tokens[0]), dim=0)
        return torch.cat([prompts, torch.cat(tokens).to(prompts.device)], dim=1)


def generate(
    method: OverTrust, watch: AttentionWatch, session: Session, stock: Any, *args: Any, **kwargs: Any
) -> Any:
    """`model.generate` with OPERA's search; everything but the loop itself is transformers' own."""

    def take(name: str, default: Any) -> Any:
        value = option(session.backbone.model, kwargs, name, default)
        kwargs.pop(name, None)
        return value

    beams, returned = take("num_beams", 1), take("num_return_sequences", 1)
    length_penalty, early_stopping = float(take("length_penalty", 1.0)), take("early_stopping", False)
    if take("do_sample", False):
        raise UnsupportedMode("opera cannot run with do_sample=True.", "It is a beam search: leave it unset.")
    if kwargs.get("streamer") is not None:
        raise UnsupportedMode("opera cannot run with a streamer.", "It takes tokens back: leave it unset.")
    if returned > beams:
        raise UnsupportedMode(
            f"opera cannot return {returned} sequences of {beams} beams.",
            "Set num_return_sequences to num_beams or less.",
        )

    def decode(
        owner: Any,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        **model_kwargs: Any,
    ) -> Any:
        given = model_kwargs.get("past_key_values")
        if given is not None and (type(given) is not DynamicCache or given.offloading):
            kind = "a static cache" if given.is_compileable else "this kind of cache"
            raise UnsupportedMode(
                f"opera cannot run with {kind}.",
                "The number of its rows changes at every step: leave cache_implementation unset.",
            )
        output = _prefill(owner, input_ids, model_kwargs)
        cache, logits = output.past_key_values, output.logits[:, -1].float()
        sequence: CachedSequence = getattr(cache, ATTRIBUTE)
        watched = sequence.memories[session.interventions.index(watch)]
        ends = generation_config.eos_token_id
        settings = BeamSettings(
            beams,
            length_penalty,
            early_stopping,
            ends=0 if ends is None else 1 if isinstance(ends, int) else len(ends),
            longest=generation_config.max_length - input_ids.shape[1],
        )
        best: list[FinishedBeam] = []
        most = prompts_at_once(cache, sequence.prompt_length, settings.longest, beams * method.candidates)
        for start in range(0, len(input_ids), most):
            rows = Rows(session, sequence, watched, cache, logits)
            searches = Searches(method, settings, input_ids, logits_processor, stopping_criteria, rows)
            for search in searches.run(range(start, min(start + most, len(input_ids)))):
                best += search.snapshot.finished[:returned]
                watched.choices.extend(search.choices)
        pad = generation_config.pad_token_id
        tokens = torch.nn.utils.rnn.pad_sequence(
            [one.tokens for one in best], batch_first=True, padding_value=0 if pad is None else int(pad)
        ).to(input_ids.device)
        if session.level != "summary" and returned == 1:
            _record(session, watch, owner, input_ids, tokens, model_kwargs)
        prompts = input_ids.repeat_interleave(returned, dim=0)
        sequences = torch.cat([prompts, tokens], dim=1)
        if not generation_config.return_dict_in_generate:
            return sequences
        from transformers.generation.utils import GenerateBeamDecoderOnlyOutput

        scores = torch.tensor([one.score for one in best], device=sequences.device)
        return GenerateBeamDecoderOnlyOutput(sequences=sequences, sequences_scores=scores)

    kwargs.update(num_beams=1, num_return_sequences=1, do_sample=False, custom_generate=decode)
    return stock(*args, **kwargs)


def _prefill(owner: Any, input_ids: Tensor, model_kwargs: dict[str, Any]) -> Any:
    inputs = owner.prepare_inputs_for_generation(input_ids, is_first_iteration=True, **model_kwargs)
    return owner(**inputs, return_dict=True)


def _record(
    session: Session,
    watch: AttentionWatch,
    owner: Any,
    input_ids: Tensor,
    tokens: Tensor,
    model_kwargs: dict[str, Any],
) -> None:
    """Run once more over the chosen tokens alone: a full trace is of them, not of all that was tried."""
    output = _prefill(owner, input_ids, {**model_kwargs, "past_key_values": None})
    cache = output.past_key_values
    sequence: CachedSequence = getattr(cache, ATTRIBUTE)
    session.calls.current.sequence = sequence
    watched: Watched = sequence.memories[session.interventions.index(watch)]
    for index in range(tokens.shape[1] - 1):
        session.backbone.driver(
            input_ids=tokens[:, index, None],
            attention_mask=torch.nn.functional.pad(~watched.padding, (0, index + 1), value=True).long(),
            position_ids=watched.last_position[..., None] + 1 + index,
            past_key_values=cache,
            use_cache=True,
        )
