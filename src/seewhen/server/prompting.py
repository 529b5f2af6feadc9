"""From messages to the model's own prompt."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from typing import Any

from seewhen.backbones.loading import tokenizer_of
from seewhen.server.failures import ApiError
from seewhen.server.schema import ImagePart, OtherMessage, TextPart, UserMessage

Message = UserMessage | OtherMessage


def image_urls(messages: Sequence[Message]) -> list[str]:
    """The addresses of all images, in the order in which the prompt shows them."""
    return [
        part.image_url.url
        for message in messages
        if isinstance(message.content, list)
        for part in message.content
        if isinstance(part, ImagePart)
    ]


def texts(messages: Sequence[Message]) -> list[str]:
    """Every text a client wrote."""
    found: list[str] = []
    for message in messages:
        if isinstance(message.content, str):
            found.append(message.content)
        else:
            found += [part.text for part in message.content if isinstance(part, TextPart)]
    return found


class Prompter:
    """Prompts of one model, checked: what clients write must not become marks of images, roles or ends."""

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        # A copy: a tokenizer that one thread reads with cannot be given another padding by a second one.
        self.tokenizer = copy.deepcopy(tokenizer_of(processor))
        added = getattr(self.tokenizer, "added_tokens_decoder", {})
        special = {number for number, token in added.items() if token.special}
        # Text becomes an unknown token where the vocabulary is small, and forges nothing.
        self._special = (special | set(self.tokenizer.all_special_ids)) - {self.tokenizer.unk_token_id}
        # Processors look for their own marks in the text of a prompt.
        named = {name: value for name, value in vars(processor).items() if name.endswith("_token")}
        self._marks = tuple({value for value in named.values() if isinstance(value, str) and value.strip()})

    def prompt(self, messages: Sequence[Message], goes_on: bool = False) -> str:
        """The rendered prompt. It has the marks of the same messages with harmless texts, and no others.

        With `goes_on` the last message is an answer that was begun.
        The whole is looked at, because a mark can be made of two parts of a message.
        """
        prompt = render(self._processor, messages, goes_on)
        harmless = render(self._processor, [_harmless(one) for one in messages], goes_on)
        forged = self._found(prompt) - self._found(harmless)
        if forged:
            raise ApiError(
                400,
                "reserved_text",
                f"The text contains {next(iter(forged))!r}, which is a mark of the model's prompt.",
                "Write it differently.",
                param="messages",
            )
        return prompt

    def _found(self, prompt: str) -> Counter[str]:
        """The marks in a prompt: as text, and as tokens, which may come of letters that only look alike."""
        found = Counter({mark: prompt.count(mark) for mark in self._marks})
        tokens = Counter(self.tokenizer.encode(prompt, add_special_tokens=False))
        for number in self._special & tokens.keys():
            word = str(self.tokenizer.convert_ids_to_tokens(number))
            found[word] = max(found[word], tokens[number])
        return found


def _harmless(message: Message) -> Message:
    """The same message with an x for each text."""
    if isinstance(message.content, str):
        return message.model_copy(update={"content": _bland(message.content)})
    parts = [
        part.model_copy(update={"text": _bland(part.text)}) if isinstance(part, TextPart) else part
        for part in message.content
    ]
    return message.model_copy(update={"content": parts})


def _bland(text: str) -> str:
    return "x" if text.strip() else text  # templates may leave out what is empty


def render(processor: Any, messages: Sequence[Message], goes_on: bool = False) -> str:
    """The prompt in the model's own template; for a model without one, the images and then the texts."""
    if goes_on:  # what was begun stands where the answer would: the model goes on as from its own words
        prompt = render(processor, messages[:-1])
        between = "" if prompt[-1:].isspace() or prompt.endswith(">") else " "
        return prompt + between + "".join(texts(messages[-1:]))
    if not getattr(processor, "chat_template", None):
        mark = str(getattr(processor, "image_token", "<image>"))
        return mark * len(image_urls(messages)) + "\n".join(texts(messages))
    plain = [{"role": _role(message), "content": _content(message)} for message in messages]
    try:
        return str(processor.apply_chat_template(plain, add_generation_prompt=True, tokenize=False))
    except Exception:  # a template refuses in its own words, of any kind: roles that do not alternate, say
        raise ApiError(
            400,
            "invalid_conversation",
            "The model's chat template refused these messages.",
            "Start with the user (or a system message) and let roles alternate.",
            param="messages",
        ) from None


def _role(message: Message) -> str:
    return "system" if message.role == "developer" else message.role


def _content(message: Message) -> list[dict[str, str]]:
    if isinstance(message.content, str):
        return [{"type": "text", "text": message.content}]
    return [
        {"type": "text", "text": part.text} if isinstance(part, TextPart) else {"type": "image"}
        for part in message.content
    ]
