"""Text as it is sent, and tokens as they are chosen."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from seewhen.equations.drawing import nucleus
from seewhen.server.bell import rung_once
from seewhen.server.jobs import Delta, Done, LogProb, Started
from seewhen.server.pending import Mailbox
from seewhen.server.sampling import Choosers, RowChooser, Sampling
from seewhen.server.token_text import TextWriter


@pytest.fixture(scope="module")
def bytes_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte: characters of several bytes arrive in pieces."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=raw)


def written(tokenizer: PreTrainedTokenizerFast, text: str, stops: tuple[str, ...]) -> tuple[list[str], TextWriter]:
    writer, pieces = TextWriter(tokenizer, stops), []
    for token in tokenizer.encode(text):
        pieces.append(writer.add(token))
        if writer.stopped:
            break
    return [*pieces, writer.end()], writer


WORDS = st.text(alphabet="ab é🙂\n", max_size=30)


@settings(max_examples=150)
@given(text=WORDS)
def test_pieces_make_the_text(bytes_tokenizer, text: str) -> None:
    pieces, writer = written(bytes_tokenizer, text, ())
    assert "".join(pieces) == writer.text == text.strip()
    assert not any("\ufffd" in piece for piece in pieces)


@settings(max_examples=300)
@given(text=WORDS, stops=st.lists(st.text(alphabet="ab é", min_size=1, max_size=3), max_size=3))
def test_stop_strings_cut_and_never_leak(bytes_tokenizer, text: str, stops: list[str]) -> None:
    pieces, writer = written(bytes_tokenizer, text, tuple(stops))
    heard = text.lstrip()  # an answer begins with its first word
    places = [heard.find(stop) for stop in stops if stop in heard]
    if places:
        # Of stops that end at the same token the first in the text counts; all begin at or after it.
        assert writer.stopped
        assert "".join(pieces) == writer.text
        assert writer.text in {heard[:place].rstrip() for place in places} | {
            heard[: heard.find(stop)].rstrip() for stop in stops if stop in heard
        }
        assert not any(stop.strip() and stop in writer.text for stop in stops)
    else:
        assert not writer.stopped and "".join(pieces) == text.strip()


def test_half_a_character_at_the_end(bytes_tokenizer) -> None:
    writer = TextWriter(bytes_tokenizer)
    tokens = bytes_tokenizer.encode("a🙂")
    assert [writer.add(token) for token in tokens[:-1]] == ["a", "", "", ""]
    assert writer.end() == "\ufffd"


@given(
    scores=st.lists(st.floats(-5, 5), min_size=1, max_size=12),
    top_p=st.floats(0.01, 1.0, exclude_max=True),
)
def test_nucleus_is_the_smallest_set(scores: list[float], top_p: float) -> None:
    share = torch.tensor([top_p], dtype=torch.float64)
    kept = nucleus(torch.tensor([scores], dtype=torch.float64), share)[0] > -torch.inf
    chances = torch.softmax(torch.tensor(scores, dtype=torch.float64), dim=-1)
    assert chances[kept].sum() >= top_p - 1e-9
    assert chances[kept].sum() - chances[kept].min() < top_p + 1e-9
    if (~kept).any():
        assert chances[kept].min() >= chances[~kept].max()


@pytest.mark.parametrize("top_p", [1e-46, 5e-324, 1e-9])
def test_the_likeliest_token_is_always_in_the_nucleus(top_p: float) -> None:
    scores = torch.tensor([0.1, 3.0, -1.0])
    kept = nucleus(scores[None], torch.tensor([top_p]))[0]
    assert torch.equal(kept, torch.tensor([-torch.inf, 3.0, -torch.inf]))


def test_noise_samples_from_the_scores() -> None:
    scores = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))
    chooser = RowChooser(Sampling(1.0, 1.0, 0), 1, None)
    counts = torch.bincount(torch.tensor([int(chooser(scores).argmax()) for _ in range(4000)]), minlength=4)
    # Four standard deviations of a share of 4000 draws.
    assert torch.allclose(counts / 4000, scores.exp(), atol=0.032)
    hot = RowChooser(Sampling(0.5, 1.0, 0), 1, None)
    counts = torch.bincount(torch.tensor([int(hot(scores).argmax()) for _ in range(4000)]), minlength=4)
    assert torch.allclose(counts / 4000, torch.softmax(2 * scores, dim=-1), atol=0.032)


def test_rows_choose_alone() -> None:
    """A row's choices are the same with other rows, with finished rows, and alone."""

    def rows(*seeds: int) -> list[SimpleNamespace]:
        return [SimpleNamespace(chooser=RowChooser(Sampling(1, 0.9, 0), s, None), finished=False) for s in seeds]

    steps = torch.randn(6, 1, 50, generator=torch.Generator().manual_seed(0))
    ids = torch.zeros(1, 1)
    alone, together = Choosers(rows(5)), rows(4, 5, 6)
    shared = Choosers(together)
    for number, step in enumerate(steps):
        together[0].finished = number > 2
        assert torch.equal(alone(ids, step)[0], shared(ids, step.expand(3, -1))[1])
    greedy = [SimpleNamespace(chooser=RowChooser(Sampling(0, 1, 0), 1, None), finished=False)]
    first = steps[0]
    assert Choosers(greedy)(ids, first) is first  # nothing to do, nothing copied


def test_text_that_waits_is_taken_in_one_piece() -> None:
    """Pieces are joined in order, per answer; those of a trace stay apart, and nothing is lost."""

    async def taken(*events: Any) -> list[Any]:
        mail = Mailbox()
        for event in events:
            mail.post(event)
        found = []
        while not isinstance(event := await mail.take(), Done):
            found.append(event)
        return found

    first, second = LogProb("a", -1.0, ()), LogProb("b", -2.0, ())
    live = Delta(0, "e", (), {"tokens": []})
    events = (Started(3, 1), Delta(0, "a", (first,)), Delta(0, "b", (second,)), Delta(1, "c"), Delta(0, "d"), live)
    expected = [Started(3, 1), Delta(0, "ab", (first, second)), Delta(1, "c"), Delta(0, "d"), live]
    assert asyncio.run(taken(*events, Done())) == expected


def test_what_a_step_posts_is_heard_at_its_end() -> None:
    """By all, and also where it ends with an error; inside, nobody is woken."""

    async def heard() -> list[Any]:
        boxes = [Mailbox() for _ in range(3)]
        waiting = [asyncio.ensure_future(box.take()) for box in boxes]
        await asyncio.sleep(0)
        within: list[bool] = []

        def step() -> None:
            with pytest.raises(RuntimeError), rung_once():
                for number, box in enumerate(boxes):
                    box.post(Delta(number, "x"))
                within.append(asyncio.run_coroutine_threadsafe(told(), loop).result())
                raise RuntimeError("on purpose")

        async def told() -> bool:
            await asyncio.sleep(0.01)
            return any(each.done() for each in waiting)

        loop = asyncio.get_running_loop()
        await asyncio.to_thread(step)
        assert within == [False]
        return list(await asyncio.gather(*waiting))

    assert [event.index for event in asyncio.run(heard())] == [0, 1, 2]


def test_what_is_posted_while_somebody_waits_arrives() -> None:
    async def heard() -> list[Any]:
        mail = Mailbox()
        thread = threading.Thread(target=lambda: [mail.post(Delta(n % 2, "x")) for n in range(500)])
        thread.start()
        found = [await mail.take() for _ in range(500)]  # two answers in turns: nothing is joined
        thread.join()
        return found

    assert [event.index for event in asyncio.run(heard())] == [n % 2 for n in range(500)]
