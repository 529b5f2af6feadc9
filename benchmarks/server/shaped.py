"""A server on a model of random weights: a processor for a shape, the server here, clients in another process."""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

_TEMPLATE = (
    "{% for message in messages %}{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image> {% else %}{{ part['text'] }} {% endif %}"
    "{% endfor %}{% endif %}{% endfor %}"
)
MODEL = "shape"


def processor(config: Any) -> Any:
    """One word for each token of the vocabulary, and pictures of the size that the model sees."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlavaProcessor, PreTrainedTokenizerFast
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    names = {0: "<unk>", 1: "<s>", 2: "</s>", config.image_token_index: "<image>"}
    words = {names.get(number, f"w{number}"): number for number in range(config.text_config.vocab_size)}
    words.setdefault("<image>", config.image_token_index)
    known = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    known.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=known,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<unk>",
        extra_special_tokens={"image_token": "<image>"},
    )
    side = config.vision_config.image_size
    images = CLIPImageProcessorPil(size={"shortest_edge": side}, crop_size={"height": side, "width": side})
    return LlavaProcessor(
        image_processor=images,
        tokenizer=tokenizer,
        patch_size=config.vision_config.patch_size,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        image_token="<image>",
        chat_template=_TEMPLATE,
    )


@contextmanager
def served(model: Any, method: str, fast: str, slots: int, tokens: int) -> Iterator[tuple[str, Any]]:
    """The server on this model for the time of the context: its address and its engine."""
    from seewhen.methods import method as make_method
    from seewhen.server.app import create_app
    from seewhen.server.engine import Engine
    from seewhen.server.fetching import Fetcher
    from seewhen.server.limits import Limits
    from seewhen.server.running import make_server
    from seewhen.server.settings import Settings

    model.generation_config.eos_token_id = None  # every answer has the same length
    limits = Limits(slots=slots, max_tokens=max(tokens, 256))
    settings = Settings(method=make_method(method), limits=limits, fetcher=Fetcher.of([], limits), temperature=0.0)
    engine = Engine(MODEL, (model, processor(model.config)), limits, settings.metrics, fast)  # type: ignore[arg-type]
    server = make_server(create_app({MODEL: engine}, settings), "127.0.0.1", 0, "warning")
    taken = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, name="server", kwargs={"sockets": [taken]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{taken.getsockname()[1]}", engine
    finally:
        server.should_exit = True
        thread.join(60)


@dataclass(frozen=True)
class Asking:
    """What clients ask, and for how long: they ask again as soon as they are answered."""

    clients: int
    tokens: int  # of each answer
    words: int  # of each prompt
    side: int  # of its picture
    warm: float  # seconds that are not counted
    seconds: float  # that are
    method: str = ""  # for a server that knows the word; empty: nothing is said
    staggered: int = 1  # first answers have different lengths, so that clients do not come in step
    hang_up: int = 0  # at the end of the time, instead of hearing the last answers to their end


def asked(url: str, asking: Asking, model: str = MODEL, patience: float = 300.0) -> dict[str, Any]:
    """What clients in a process of their own measure, if they are done within `patience` seconds."""
    given = {"url": url, "model": model, **asdict(asking)}
    command = [sys.executable, __file__, *(f"--{name}={value}" for name, value in given.items())]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=patience)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _body(number: int, options: argparse.Namespace) -> dict[str, Any]:
    from PIL import Image

    picture = Image.radial_gradient("L").resize((options.side, options.side)).rotate(11 * number).convert("RGB")
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    text = " ".join(f"w{100 + (37 * number + k) % 900}" for k in range(options.words))
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}]
    messages = [{"role": "user", "content": content}]
    ours = {"seewhen": {"method": options.method}} if options.method else {}
    return {"model": options.model, "messages": messages, "temperature": 0, "stream": True, **ours}


async def _clients(options: argparse.Namespace) -> dict[str, Any]:
    try:
        import httpx2 as httpx
    except ImportError:
        import httpx

    first: list[float] = []
    each: list[float] = []
    unheard: list[float] = []  # for how long those had waited who hung up before their first token
    count = pieces_counted = 0
    opens = time.perf_counter() + options.warm
    closes = opens + options.seconds

    async def one(number: int, client: Any) -> None:
        nonlocal count, pieces_counted
        body = _body(number, options)
        share = (1 + number) / options.clients if options.staggered else 1.0
        while (began := time.perf_counter()) < closes:
            tokens, share = max(int(options.tokens * share), 2), 1.0
            pieces = words = 0
            try:
                async with client.stream(
                    "POST", f"{options.url}/v1/chat/completions", json={**body, "max_tokens": tokens}
                ) as response:
                    assert response.status_code == 200, await response.aread()
                    async for line in response.aiter_lines():
                        if not line.startswith("data: {"):
                            continue
                        event = json.loads(line[6:])
                        assert "error" not in event, event
                        text = "".join(choice["delta"].get("content") or "" for choice in event["choices"])
                        if text.strip():
                            last = time.perf_counter()
                            if not pieces:
                                started, begun = last, len(text.split())
                            pieces += 1
                            words += len(text.split())  # a word is a token of this tokenizer
                            if opens <= last < closes:
                                count += len(text.split())
                                pieces_counted += 1
            except asyncio.CancelledError:
                if not pieces:
                    unheard.append(time.perf_counter() - began)
                raise
            if opens <= began and last < closes:
                first.append(started - began)
                each.append((last - started) / max(words - begun, 1))

    async with httpx.AsyncClient(timeout=280, limits=httpx.Limits(max_connections=options.clients + 1)) as client:
        all_ = asyncio.gather(*(one(number, client) for number in range(options.clients)))
        with suppress(TimeoutError):  # they have hung up
            await asyncio.wait_for(all_, closes - time.perf_counter() if options.hang_up else None)
    found = {"seconds": options.seconds, "tokens": count, "pieces": pieces_counted}
    return {**found, "first": sorted(first), "each": sorted(each), "unheard": sorted(unheard)}


def main() -> None:
    """The clients."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--method", default="")
    for name in ("clients", "tokens", "words", "side", "staggered", "hang_up"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("warm", "seconds"):
        parser.add_argument(f"--{name}", type=float, required=True)
    print(json.dumps(asyncio.run(_clients(parser.parse_args()))))


if __name__ == "__main__":
    main()
