"""The fast decoding loop: one captured step, replayed; the host only looks at tokens, a little later.

`generate` calls it through `custom_generate`, so prompts, stopping rules and samplers are prepared as
always. The prompt runs through the stock modules into a static cache; the next step runs once, which
also warms it up, and is then captured as a CUDA graph: embedding, decoder, gates, tilts, branches, rule,
sampling, all on the device. The host replays it and reads tokens back a few steps late, so the device
never waits. Captured steps are kept and used again for prompts of the same form.

Without a GPU the same loop runs the step as it is, which is how its logic is tested anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.stopping_criteria import (
    EosTokenCriteria,
    MaxLengthCriteria,
    MaxTimeCriteria,
    StopStringCriteria,
)

from seewhen.decoding.calls import left_early
from seewhen.decoding.fast.adopt import columns_for, empty_cache
from seewhen.decoding.fast.judged_steps import CapturedSteps
from seewhen.decoding.fast.prompts import Passes, Tower, replayed
from seewhen.decoding.fast.step import Captured, StepMaker, capture
from seewhen.decoding.fast.tape import Tape
from seewhen.decoding.judging import Choosing, JudgedLoop, most_steps, read_prompt
from seewhen.decoding.kept import Kept
from seewhen.decoding.kernels.capturing import turn

if TYPE_CHECKING:
    from seewhen.decoding.session import Session

# Processors that look at the scores alone, so that they can be captured.
_CAPTURABLE = (TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper, MinPLogitsWarper)
_CRITERIA = (EosTokenCriteria, MaxLengthCriteria, MaxTimeCriteria, StopStringCriteria)


class Chooser:
    """Logits processors, then the largest score or a sample."""

    def __init__(self, processors: Any, samples: bool) -> None:
        self.processors, self.samples = processors, samples
        self.capturable = all(isinstance(processor, _CAPTURABLE) for processor in processors)
        described = [(type(p).__name__, sorted((k, str(v)) for k, v in vars(p).items())) for p in processors]
        self.key = (samples, str(described))

    def __call__(self, ids: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens (rows,) and scores."""
        scores = self.processors(ids, logits)
        if not self.samples:
            return scores.argmax(dim=-1), scores
        # What torch.multinomial does for one draw, without its check that waits for the device.
        probabilities = torch.softmax(scores, dim=-1)
        return (probabilities / torch.empty_like(probabilities).exponential_(1)).argmax(dim=-1), scores


@dataclass
class FastLoop:
    """A decoding loop for one session."""

    session: Session
    streamer: Any = None
    # Shared with the copies made for single calls.
    kept: Kept[Captured] = field(default_factory=Kept)
    tower: Tower = field(default_factory=Tower)

    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        generation_config: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Decode, as transformers' own loop would."""
        steps = generation_config.max_length - input_ids.shape[1]
        judges = self.session.parts.judge is not None
        embeds = kwargs.get("inputs_embeds")
        prompt = input_ids.shape[1] if embeds is None else embeds.shape[1]
        most = most_steps(steps, self.session.parts.budget)
        if self._leaves(model, stopping_criteria, generation_config, prompt + most, kwargs):
            arguments = {"logits_processor": logits_processor, "stopping_criteria": stopping_criteria}
            arguments |= {"generation_config": generation_config, "streamer": self.streamer}
            if judges:
                del arguments["streamer"]
                return JudgedLoop(self.session, self.streamer)(model, input_ids, **arguments, **kwargs)
            if self.streamer is not None:
                self.streamer.put(input_ids.cpu())
            return model._sample(input_ids, **arguments, **kwargs)
        key = (input_ids.shape[0], columns_for(prompt + most))
        earlier = self.kept.take(key)
        prompts = Passes() if earlier is None else earlier.prompts
        before = None if earlier is None else earlier.cache
        kwargs["past_key_values"] = cache = empty_cache(model, key[1], before)
        tape = None
        if not judges:  # made before the prompt is read: it reads the token ids back, and would wait for that
            tape = Tape(input_ids, steps, generation_config, stopping_criteria, self.streamer)
        with (
            turn(input_ids.device),
            replayed(self.session, prompts, cache, lambda: empty_cache(model, key[1], before)),
        ):
            logits, kwargs = read_prompt(model, input_ids, generation_config, kwargs)
        choose = Chooser(logits_processor, generation_config.do_sample)
        if tape is None:
            choosing = Choosing(logits_processor, stopping_criteria, generation_config, self.streamer)
            steps_of = CapturedSteps(self.session, self.kept, model, kwargs, input_ids, choose, earlier, prompts)
            return steps_of.judged(choosing, logits)
        with turn(input_ids.device):
            first, scores = choose(input_ids, logits)
        tape.put(first, logits, scores)
        if steps > 1 and not tape.finished:
            self._decode(model, tape, kwargs, choose, earlier, prompts)
        elif earlier is not None:
            self._keep(earlier, prompts)
        return tape.result()

    def _leaves(self, model: Any, criteria: Any, config: Any, length: int, kwargs: dict[str, Any]) -> bool:
        """Whether this call is left to transformers' own loop."""
        window = getattr(model.config.get_text_config(decoder=True), "sliding_window", None)
        given = kwargs.get("past_key_values")
        return (
            any(not isinstance(criterion, _CRITERIA) for criterion in criteria)
            or bool(config.output_attentions or config.output_hidden_states)
            or (window is not None and window < columns_for(length))  # the window would have to slide
            or (given is not None and (getattr(given, "is_compileable", True) or int(given.get_seq_length()) > 0))
            or model.config.is_encoder_decoder
        )

    def _decode(
        self,
        model: Any,
        tape: Tape,
        kwargs: dict[str, Any],
        choose: Chooser,
        earlier: Captured | None,
        prompts: Passes,
    ) -> None:
        sequence = self.session.last
        assert sequence is not None
        step, warm = StepMaker(self.session).step(model, tape.so_far, kwargs, choose, earlier)
        if not warm:
            tape.catch_up()  # whoever listens need not wait for the capture
            with turn(tape.ids.device):
                step.run()  # the second token; from here on everything is warm
            self._put(step, tape, choose)
            capture(step)
        while tape.start + tape.queued < tape.ids.shape[1] and not tape.finished:
            if self.session.placement is not sequence.placement:
                raise left_early(self.session.method.name)
            with turn(tape.ids.device):
                step.run()
            self._put(step, tape, choose)
        self._keep(step, prompts)

    def _keep(self, step: Captured, prompts: Passes) -> None:
        """After an error it is not kept: what it holds is unknown."""
        sequence = self.session.last
        assert sequence is not None
        self.session.calls.current.sequence = sequence.kept()
        step.prompts = prompts
        self.kept.put(step.key, step)

    def _put(self, step: Captured, tape: Tape, choose: Chooser) -> None:
        output = step.output
        assert output.logits is not None
        if output.tokens is None:
            with turn(tape.ids.device):
                tokens, scores = choose(tape.so_far, output.logits)
            step.buffers.token.copy_(tokens[:, None])
        else:
            tokens, scores = output.tokens, output.scores  # type: ignore[assignment]
        tape.put(tokens, output.logits, scores)
