"""`seewhen.remote`: a model that somebody else serves, asked as a local one is."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from seewhen.asking.check import Checked, Inquiry, Standard, given_images
from seewhen.asking.options import DESCRIBE, Decoding
from seewhen.backbones.prompts import Picture
from seewhen.decoding.method import Method
from seewhen.errors import InvalidInput, UnsupportedMode
from seewhen.methods import method as make_method
from seewhen.methods.confirm import Confirm
from seewhen.methods.regular import MinP, Regular
from seewhen.served.extras import checked_extras
from seewhen.served.odds import Odds, odds_of
from seewhen.served.offers import Ask, Offers, probe, request, user, with_log_probs
from seewhen.served.pictures import image_part
from seewhen.served.replies import Completion, Usage
from seewhen.served.server import KEY, Meter, Patience, Server
from seewhen.served.writing import Judging, Writer
from seewhen.verdicts.forbidden import Forbidden
from seewhen.verdicts.lexicon import Lexicon, lexicon_named
from seewhen.verdicts.questions import QUESTION, check_template
from seewhen.verdicts.questions import question as wording
from seewhen.verdicts.shipped import verdict_named
from seewhen.verdicts.verdict import log_odds_of

Message = Mapping[str, Any]


@dataclass(frozen=True)
class Written:
    """What a served model answered. `told` is what `confirm` tells of it; `usage` what it cost."""

    text: str
    tokens: int
    usage: Usage
    told: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()


def remote(
    url: str,
    model: str,
    *,
    key_from: str = KEY,
    options: Mapping[str, Any] | None = None,
    **patience: float,
) -> Remote:
    """The model that the OpenAI-compatible server at `url` serves as `model`.

    The key is read from the environment variable `key_from`. `options` are added to every request. `timeout` and
    `deadline` (seconds), `tries` and `at_once` say how patiently it is asked.

        model = seewhen.remote("http://127.0.0.1:8000/v1", "llava")
        print(model.check("photo.jpg", "A dog beside a vase.").denied)
        print(model.generate("photo.jpg", "What is in the image?", "confirm").text)
    """
    try:
        waiting = Patience(**patience)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidInput(
            f"There is no such patience: {', '.join(patience)}.", "Use timeout, deadline, tries or at_once."
        ) from None
    server, extras = Server(url, key_from, waiting), checked_extras(options or {})
    if server.has_key_in(json.dumps(extras)):
        raise InvalidInput("What is added to requests holds the key, and is stored with runs.", "Leave it out.")
    return Remote(server, model, extras)


class Remote:
    """A served model. What the server offers is found out on first need, once."""

    def __init__(self, server: Server, model: str, options: Mapping[str, Any]) -> None:
        self.server, self.model, self.options = server, model, dict(options)
        self._offers: Offers | None = None
        self._probing = threading.Lock()

    def __repr__(self) -> str:
        return f"Remote({self.server.url!r}, {self.model!r})"

    def close(self) -> None:
        """Ends the connections."""
        self.server.close()

    def for_runs(self) -> dict[str, Any]:
        """What a run is told of it, which makes connections of its own: `Ask("chair", **model.for_runs())`."""
        server = self.server
        known = {"server": server.url, "model": self.model, "request": dict(self.options)}
        return {**known, "key_from": server.key_from, "at_once": int(server.patience.at_once)}

    @property
    def usage(self) -> Usage:
        """What everything so far cost."""
        return self.server.meter.usage

    def ask(self, requests: Sequence[Mapping[str, Any]], meter: Meter) -> list[Completion]:
        """The answers to requests, all at once."""
        return self.server.ask(self.whole(requests), meter)

    def whole(self, requests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Requests with the model's name and with what is added to each."""
        return [{"model": self.model, **self.options, **each} for each in requests]

    @property
    def offers(self) -> Offers:
        """What the server offers."""
        return self.found_out(lambda requests: self.ask(requests, Meter()))

    def found_out(self, ask: Ask, seconds: float = -1) -> Offers:
        """The same, found out by `ask`, or by another caller, who is waited for `seconds` (then TimeoutError)."""
        if self._offers is None:
            if not self._probing.acquire(timeout=seconds):
                raise TimeoutError
            try:
                self._offers = self._offers or probe(ask)
            finally:
                self._probing.release()
        return self._offers

    def asking(self) -> Offers:
        """The same, for whoever needs log-probabilities."""
        if not self.offers.likeliest:
            raise UnsupportedMode(
                f"{self.server.url} tells no log-probabilities, so its answers to questions have no odds.",
                "Use another server, or the method regular.",
            )
        return self.offers

    # -- checking ----------------------------------------------------------------------------------------------

    def check(
        self,
        image: Picture | Sequence[Picture] | None,
        text: str,
        *,
        lexicon: str = "open",
        verdict: str = "auto",
        threshold: float | None = None,
        question: str = QUESTION,
    ) -> Checked:
        """As `seewhen.check`. Without a fit for the served model, `auto` is asking alone."""
        words, standard = lexicon_named(lexicon), Standard.of(verdict_named(verdict), threshold)
        inquiry = Inquiry.of(text, words)
        parts = [image_part(each) for each in given_images(image)]
        asked = ServedQuestions(self, parts, words, check_template(question), Meter())
        found = asked.odds(inquiry.objects) if inquiry.objects else {}
        known = {name: odds for name, odds in found.items() if odds is not None}
        ranges = {name: odds.range for name, odds in known.items() if odds.range is not None}
        checked = inquiry.judged({name: odds.value for name, odds in known.items()}, standard, ranges)
        untold = len(found) - len(known)
        if not untold:
            return checked
        note = f"To {untold} questions neither yes nor no was among the likeliest first words of the answer."
        return replace(checked, notes=(*checked.notes, note))

    # -- answering ---------------------------------------------------------------------------------------------

    def generate(
        self,
        image: Picture | Sequence[Picture] | None,
        text: str = DESCRIBE,
        method: str | Method = "regular",
        *,
        settled: Callable[[str], None] = lambda text: None,
        **decoding: Any,
    ) -> Written:
        """Answer `text` about `image`. `decoding` as for `Decoding`: max_new_tokens, do_sample, temperature ..."""
        parts = [] if image is None else [image_part(each) for each in given_images(image)]
        return self.answer([user(*parts, {"type": "text", "text": text})], method, Decoding(**decoding), settled)

    def answer(
        self,
        messages: Sequence[Message],
        method: str | Method,
        decoding: Decoding,
        settled: Callable[[str], None] = lambda text: None,
    ) -> Written:
        """The answer to a conversation; `settled` gets its text piece by piece, as far as it stays."""
        method = make_method(method)
        sampling = self._sampling(method, decoding)
        if isinstance(method, Confirm):
            return self._confirmed(messages, method, decoding, sampling, settled)
        meter = Meter()
        (found,) = self.ask([request(messages, max_tokens=decoding.max_new_tokens, **sampling)], meter)
        settled(found.text.strip())
        return Written(found.text.strip(), found.usage.completion_tokens, meter.usage)

    def _sampling(self, method: Method, decoding: Decoding) -> dict[str, Any]:
        """What the server is told about choosing tokens."""
        check_served(method)
        if decoding.num_beams != 1 or decoding.repetition_penalty not in (None, 1.0):
            raise UnsupportedMode("Served models are not asked for beams or penalties.", "Leave them out.")
        if not decoding.do_sample:
            return {}
        chosen = {"temperature": 1.0 if decoding.temperature is None else decoding.temperature}
        given = {"top_p": decoding.top_p, "top_k": decoding.top_k, "min_p": decoding.min_p}
        if isinstance(method, MinP):
            given["min_p"] = method.min_p
        return chosen | {name: v for name, v in given.items() if v is not None} | {"seed": decoding.seed}

    def _confirmed(
        self,
        messages: Sequence[Message],
        method: Confirm,
        decoding: Decoding,
        sampling: dict[str, Any],
        settled: Callable[[str], None],
    ) -> Written:
        verdict, lexicon, meter = verdict_named(method.verdict), lexicon_named(method.lexicon), Meter()
        threshold = log_odds_of(verdict.threshold) if method.threshold is None else method.threshold
        self.asking()
        asked = ServedQuestions(self, images_of(messages), lexicon, method.question, meter)
        judging = Judging(method, lexicon.with_variants, Forbidden(lexicon), verdict, threshold)
        writer = Writer(asked, messages, judging, decoding.max_new_tokens, sampling, settled)
        writer.answer.asks = bool(asked.images)
        told = writer.write()
        foreign = lexicon.note_if_foreign(writer.text)
        notes = (*self.offers.notes, *([foreign] if foreign else []))
        return Written(writer.text.strip(), len(writer.tokens), meter.usage, told, notes)


def check_served(method: Method) -> None:
    """Refuse a method that needs more than questions."""
    if not isinstance(method, Regular | MinP | Confirm):
        raise UnsupportedMode(
            f"{method.name} works inside the model, which a server does not let us do.",
            "Use the method regular, min-p or confirm, or load the model here.",
        )
    if isinstance(method, Confirm) and method.drafts:
        raise UnsupportedMode(
            "Drafts are drawn beside the answer, which a served model does not do.", "Use drafts=0."
        )
    if isinstance(method, Confirm) and method.when is not None:
        raise UnsupportedMode("confirm: a server tells no entropies for `when`.", "Leave it out.")


@dataclass(frozen=True)
class ServedQuestions:
    """A served model with images that it is asked about. They come first, so that a server reads them once."""

    remote: Remote
    images: Sequence[Message]
    lexicon: Lexicon
    template: str
    meter: Meter = field(default_factory=Meter)

    @property
    def offers(self) -> Offers:
        return self.remote.offers

    def complete(self, request: Mapping[str, Any]) -> Completion:
        """An answer."""
        return self.remote.ask([request], self.meter)[0]

    def odds(self, names: Sequence[str]) -> dict[str, Odds | None]:
        """Log-odds of yes for each of `names`, all asked at once."""
        count = self.remote.asking().likeliest
        requests = []
        for name in names:
            text = {"type": "text", "text": wording(name, self.lexicon, self.template)}
            requests.append(request([user(*self.images, text)], max_tokens=1, **with_log_probs(count)))
        found = self.remote.ask(requests, self.meter)
        return {name: odds_of(each.likeliest) for name, each in zip(names, found, strict=True)}


def images_of(messages: Sequence[Message]) -> list[Message]:
    """The images of a conversation."""
    return [
        part
        for message in messages
        if not isinstance(message["content"], str)
        for part in message["content"]
        if part.get("type") == "image_url"
    ]
