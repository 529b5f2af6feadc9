"""One asker: rows without an image, batches that do not fit, and what its answers share."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import seewhen
from runs.tiny_checkpoint import write
from seewhen.asking.asker import Asker, Question
from seewhen.asking.memory import Halving
from seewhen.asking.options import DESCRIBE
from seewhen.errors import InvalidInput, SeewhenError
from seewhen.scenes import dataset, render

OPTIONS: dict[str, Any] = {"max_new_tokens": 4, "do_sample": False}
METHODS = ("regular", "cai:start_layer=1,threshold=0.1,contrast=3", "vcd")


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return seewhen.load(str(write(tmp_path_factory.mktemp("model"))), device="cpu")


def picture(shade: int) -> Image.Image:
    return Image.new("RGB", (32, 32), (shade, 90, 200 - shade))


class TooLarge:
    """A model that has no memory for more than some rows."""

    def __init__(self, model: Any, rows: int) -> None:
        self.seen: list[int] = []

        def refuse(module: Any, args: Any, kwargs: Any) -> None:
            count = len(kwargs["inputs_embeds"])
            self.seen.append(count)
            if count > rows:
                raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")

        self.handle = Asker(model).backbone.decoder.register_forward_pre_hook(
            refuse, with_kwargs=True, prepend=True
        )


@pytest.mark.filterwarnings("ignore:No image in the prompt")
@pytest.mark.parametrize("method", METHODS)
def test_a_row_without_an_image_beside_one_with(loaded: Any, method: str) -> None:
    image, texts = picture(10), ["Is there a dog?", "Is there a cat?"]
    together = seewhen.generate(*loaded, [image, None], texts, method, **OPTIONS)
    alone = [
        seewhen.generate(*loaded, i, t, method, **OPTIONS).text for i, t in zip((image, None), texts, strict=True)
    ]
    assert list(together.texts) == alone


@pytest.mark.parametrize("method", METHODS)
def test_a_batch_that_does_not_fit_is_halved(loaded: Any, method: str) -> None:
    images, texts = [picture(20 * n) for n in range(5)], [f"Is there a dog or {n}?" for n in range(5)]
    whole = seewhen.generate(*loaded, images, texts, method, **OPTIONS)
    limited = TooLarge(loaded, 2 * (1 if method == "regular" else 2))
    try:
        halved = seewhen.generate(*loaded, images, texts, method, **OPTIONS)
    finally:
        limited.handle.remove()
    assert halved.answers == whole.answers
    assert [trace.rows for trace in halved.traces] == [2, 2, 1]
    with pytest.raises(SeewhenError, match="in 3 parts"):
        _ = halved.trace


def test_one_row_that_does_not_fit_is_an_error(loaded: Any) -> None:
    limited = TooLarge(loaded, 0)
    try:
        with pytest.raises(RuntimeError, match="out of memory"):
            seewhen.generate(*loaded, picture(1), "Why?", "regular", **OPTIONS)
    finally:
        limited.handle.remove()


def test_the_size_that_fits_is_remembered() -> None:
    tried: list[int] = []

    def work(part: Any) -> list[int]:
        tried.append(len(part))
        if len(part) > 3:
            raise MemoryError
        return list(part)

    halving = Halving()
    assert sum(halving(range(10), work), []) == list(range(10))  # noqa: RUF017
    assert tried == [10, 5, 2, 2, 2, 2, 2] and halving.most == 2


def test_questions_about_one_picture_share_what_they_can(loaded: Any) -> None:
    asker, image = Asker(loaded), picture(70)
    questions = [Question(asker.prompt(f"Is there a dog or {n}?"), (image,)) for n in range(4)]
    read: list[int] = []
    handle = asker.backbone.decoder.layers[0].register_forward_pre_hook(
        lambda m, args: read.append(args[0].shape[:2].numel())
    )
    try:
        with asker.attached("regular", fast="off") as attached:
            (batch,) = attached.answer(questions, OPTIONS)
        shared = sum(read)
        read.clear()
        apart = [attached_answer(asker, question) for question in questions]
    finally:
        handle.remove()
    assert [answer.text for answer in batch.answers] == apart
    assert shared < sum(read) / 2


def attached_answer(asker: Asker, question: Question) -> str:
    with asker.attached("regular", fast="off") as attached:
        return attached.answer([question], OPTIONS)[0].answers[0].text


def test_what_the_asker_knows(loaded: Any, tmp_path: Path) -> None:
    asker = Asker(loaded)
    assert asker.ends and asker.ends <= asker.special
    prompt = torch.tensor([[5, 6, 7]])
    end = min(asker.ends)
    output = torch.tensor([[5, 6, 7, 9, end, 3]])
    assert asker.new_tokens(output, prompt) == [[9, end]] == asker.new_tokens(output[:, 3:], prompt)
    pad = next(token for token in range(50) if token not in asker.ends)
    asker.tokenizer.pad_token_id, kept = pad, asker.tokenizer.pad_token_id
    try:  # one that a method ended stands beside longer ones, with no token that ends it
        assert asker.new_tokens(torch.tensor([[9, 8, pad, pad], [9, pad, 8, 7]]), prompt) == [
            [9, 8],
            [9, pad, 8, 7],
        ]
    finally:
        asker.tokenizer.pad_token_id = kept


def test_an_answer_that_a_method_ended_is_as_long_in_a_batch_as_alone() -> None:
    """What is taken back leaves it shorter than its neighbours, with no token that ends it: padding is none."""
    asker, options = Asker(seewhen.load()), {"max_new_tokens": 48, "do_sample": False}
    scenes = dataset("shifted", 5)[2:]
    questions = [Question(asker.prompt(DESCRIBE), (render(scene),)) for scene in scenes]
    with asker.attached("confirm:coco:threshold=1:on_denied=stop") as attached:
        (batch,) = attached.answer(questions, options)
        alone = [attached.answer([each], options)[0].answers[0] for each in questions]
    assert [answer.tokens for answer in batch.answers] == [answer.tokens for answer in alone]
    assert batch.trace is not None and batch.trace.lengths == tuple(len(answer.tokens) for answer in alone)
    assert any(asker.ends.isdisjoint(answer.tokens) for answer in alone)


def test_sureness_in_one_pass_is_that_of_decoding_step_by_step(loaded: Any) -> None:
    asker = Asker(loaded)
    question = Question(asker.prompt("Is there a dog?"), (picture(40),))
    answer = asker.tokenizer("dog . a cat and a vase")["input_ids"]
    log_probs, entropies = asker.sureness(question, answer)
    trace = asker.replayed([question], [answer], seewhen.method("regular"))
    steps = torch.log_softmax(trace.logits[:, 0].float(), dim=-1)
    assert len(log_probs) == len(entropies) == len(answer)
    torch.testing.assert_close(torch.tensor(log_probs), steps[range(len(answer)), answer], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(torch.tensor(entropies), trace.entropy[:, 0, -1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_threads_that_share_prefixes_and_threads_that_do_not(loaded: Any, method: str) -> None:
    """Questions about one picture, which share its prefix, while others go through the same model on their own."""
    shared, texts = picture(40), [f"Is there a dog or {n}?" for n in range(4)]
    asker = Asker(loaded)
    same = [Question(asker.prompt(text), (shared,)) for text in texts]
    other = [Question(asker.prompt("Is there a horse in it?"), (picture(90),))]
    with asker.attached(method) as attached:

        def ask(number: int) -> list[Any]:
            questions = same if number % 2 else other
            return [answer for batch in attached.answer(questions, OPTIONS) for answer in batch.answers]

        serial = [ask(0), ask(1)]
        with ThreadPoolExecutor(8) as pool:
            together = list(pool.map(ask, range(48)))
    assert all(answers == serial[number % 2] for number, answers in enumerate(together))


def test_judged_answers_share_what_they_have_in_common() -> None:
    """`confirm` over questions about one picture: one row reads the prefix, and verdicts are the same."""
    shared = render(dataset("shifted", 1)[0])
    asker = Asker(seewhen.load("packaged", device="cpu"))
    texts = ("Please describe this image.", "Please describe this image in detail.")
    questions = [Question(asker.prompt(text), (shared,)) for text in texts]
    options: dict[str, Any] = {"max_new_tokens": 24, "do_sample": False}
    decoder, passes = asker.backbone.decoder, list[tuple[int, int]]()
    stock = decoder.forward

    def counted(*args: Any, **kwargs: Any) -> Any:
        passes.append(tuple(kwargs["inputs_embeds"].shape[:2]))
        return stock(*args, **kwargs)

    with asker.attached("confirm:lexicon=coco") as attached:
        alone = [attached.answer([question], options)[0] for question in questions]
        decoder.forward = counted
        try:
            together = attached.answer(questions, options)[0]
        finally:
            del decoder.forward
    (first, columns), (second, rest), *_ = passes
    assert (first, second) == (1, 2) and columns > rest  # the prefix once, then what is each question's own
    assert [batch.answers[0] for batch in alone] == list(together.answers)
    for one, told in zip(alone, together.trace.told, strict=True):
        verdicts = one.trace.told[0]["verdicts"]
        assert verdicts and [m["object"] for m in told["verdicts"]] == [m["object"] for m in verdicts]
        for mine, theirs in zip(told["verdicts"], verdicts, strict=True):
            assert mine["odds"] == pytest.approx(theirs["odds"], abs=2e-4)


def test_what_is_no_method_is_refused(loaded: Any) -> None:
    for wrong in (3, None, object()):
        with pytest.raises(SeewhenError, match="is no method"):
            seewhen.attach(loaded[0], wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", [None, 3, ["Why?", None]])
def test_what_is_no_text_is_refused(loaded: Any, text: Any) -> None:
    with pytest.raises(InvalidInput, match="A text is a string"):
        seewhen.generate(*loaded, picture(1), text, "regular", **OPTIONS)
    with pytest.raises(InvalidInput, match="A text to check is one string"):
        seewhen.check(*loaded, picture(1), text)
