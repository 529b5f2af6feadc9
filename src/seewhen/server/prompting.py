"""From messages to the model's own prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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


def reserved_words(tokenizer: Any) -> tuple[str, ...]:
    """The texts that a tokenizer turns into special tokens: role marks, image places, ends."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    special = {str(token.content) for token in added.values() if token.special}
    return tuple(sorted(word for word in special | set(tokenizer.all_special_tokens) if word.strip()))


def check_texts(written: Sequence[str], reserved: Sequence[str]) -> None:
    """Refuse text that would forge an image, a role or an end in the prompt."""
    for text in written:
        for word in reserved:
            if word in text:
                raise ApiError(
                    400,
                    "reserved_text",
                    f"The text contains {word!r}, which is a mark of the model's prompt.",
                    "Write it differently.",
                    param="messages",
                )


def render(processor: Any, messages: Sequence[Message]) -> str:
    """The prompt in the model's own template; for a model without one, the images and then the texts."""
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
