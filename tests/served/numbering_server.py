"""Our own server as other engines are: it tells the numbers of tokens when asked, and knows no `bad_words`."""

from __future__ import annotations

from typing import Any

from served.fault_server import Fault, Handler, passes_on, says


def numbering(url: str, tokenizer: Any, *, one_short: bool = False) -> Fault:
    """In front of the server at `url`. With `one_short` it lies: a number is missing."""

    def answer(handler: Handler) -> None:
        body = dict(handler.body)
        wanted = body.pop("return_token_ids", False)
        if "bad_words" in body:
            says({"error": "there is no bad_words"}, 400)(handler)
            return
        if (reply := passes_on(handler, url, body)) is None:
            return
        choice = reply["choices"][0]
        if wanted and choice.get("logprobs"):
            texts = [token["token"].replace(" ", "Ġ") for token in choice["logprobs"]["content"]]
            choice["token_ids"] = tokenizer.convert_tokens_to_ids(texts)[one_short:]
        says(reply)(handler)

    return answer
