"""Our own server as other engines answer: each ignores what it does not know and tells the rest its own way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from served.fault_server import Fault, Handler, passes_on, says

Reply = dict[str, Any]

# Of what is asked beyond OpenAI's own fields; those ignore it.
_BEYOND = ("continue_final_message", "add_generation_prompt", "include_stop_str_in_output", "return_token_ids")
_OURS = ("bad_words", *_BEYOND)


def dialect(url: str, change: Callable[[Reply], None]) -> Fault:
    """An engine in front of our server at `url`, whose answers `change` rewrites."""

    def answer(handler: Handler) -> None:
        body = {name: value for name, value in handler.body.items() if name not in _OURS}
        if body["messages"][-1]["role"] == "assistant":  # it answers what was asked before that
            body["messages"] = body["messages"][:-1]
        if (reply := passes_on(handler, url, body)) is None:
            return
        for each in (reply, *reply["choices"]):
            each.pop("seewhen", None)
        for choice in reply["choices"]:
            del choice["stop_reason"], choice["token_ids"]
        change(reply)
        says(reply)(handler)

    return answer


def llama_cpp(reply: Reply) -> None:
    """Numbers of tokens among their log-probabilities, the least float for what cannot be, and its own timings."""
    reply["timings"] = {"prompt_n": 1, "predicted_ms": 1.5}
    for place in _places(reply):
        for number, each in enumerate((place, *place["top_logprobs"])):
            each["id"] = number
        place["top_logprobs"][-1]["logprob"] = -3.4028234663852886e38


def tgi(reply: Reply) -> None:
    """What cannot be has null for its log-probability, as JSON has no infinity."""
    for place in _places(reply):
        place["top_logprobs"][-1]["logprob"] = None
    reply["choices"][0]["finish_reason"] = "eos_token"


def sglang(reply: Reply) -> None:
    """Fields of its own, and null where nothing is told."""
    choice = reply["choices"][0]
    choice["matched_stop"] = 2
    choice["message"] |= {"reasoning_content": None, "tool_calls": None}
    reply["usage"] |= {"prompt_tokens_details": None, "reasoning_tokens": 0}


def in_parts(reply: Reply) -> None:
    """The answer in parts after what was thought, counts that are null, and no word of why it ended."""
    choice = reply["choices"][0]
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "Is there a cat? No."}]}
    choice["message"]["content"] = [thought, {"type": "text", "text": choice["message"]["content"]}]
    reply["usage"] = {"prompt_tokens": None, "completion_tokens": None}
    del choice["finish_reason"]


def silent(reply: Reply) -> None:
    """Neither log-probabilities nor costs."""
    reply["choices"][0]["logprobs"] = None
    del reply["usage"]


def elsewhere(reply: Reply) -> None:
    """Log-probabilities as the older completions had them."""
    choice = reply["choices"][0]
    places = _places(reply)
    if places:
        tops = [{each["token"]: each["logprob"] for each in place["top_logprobs"]} for place in places]
        choice["logprobs"] = {"tokens": [place["token"] for place in places], "top_logprobs": tops}


def _places(reply: Reply) -> list[Reply]:
    told = reply["choices"][0]["logprobs"]
    return [] if told is None else list(told["content"])
