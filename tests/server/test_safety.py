"""Refusals: each with its status, its code and a hint, and nothing that a stranger should not see."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from loopback import MODEL, Running, data_url, encoded, held, picture, question, until
from PIL import Image

import seewhen
from seewhen.errors import InvalidInput
from seewhen.server.failures import ApiError
from seewhen.server.fetching import Fetcher
from seewhen.server.guard import HEADERS
from seewhen.server.limits import Limits, limits_of
from seewhen.server.running import check_address
from seewhen.server.schema import ChatRequest, parse
from seewhen.server.settings import Settings, model_names

SMALL = {"model": MODEL, "messages": question("w5", 1), "max_tokens": 1, "temperature": 0}
LEAK = re.compile(r"0x[0-9a-f]{6,}|Traceback|File \"|/home|/tmp|site-packages|127\.0\.0\.1|169\.254")


def post(server: Running, body: Any, **options: Any) -> httpx2.Response:
    content = json.dumps(body).encode() if isinstance(body, dict) else body
    headers = {"Content-Type": "application/json", **options.pop("headers", {})}
    url = f"{server.url}/v1/chat/completions"
    return httpx2.post(url, content=content, headers=headers, timeout=60, **options)


def get(server: Running, path: str) -> httpx2.Response:
    return httpx2.get(server.url + path, timeout=60)


def code(response: httpx2.Response, status: int) -> str:
    """The code of an error, after a look at its shape."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code", "hint"}
    assert error["message"] and not LEAK.search(response.text)
    for name, value in HEADERS.items():
        assert response.headers[name] == value
    assert re.fullmatch("[0-9a-f]{24}", response.headers["x-request-id"])
    return str(error["code"])


def with_image(url: str) -> dict[str, Any]:
    return {**SMALL, "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"tools": [{"type": "function"}]}, "unsupported_parameter"),
        ({"frequency_penalty": 0.5}, "unsupported_parameter"),
        ({"response_format": {"type": "json_object"}}, "unsupported_parameter"),
        ({"logit_bias": {"5": 101}}, "invalid_request"),
        ({"logit_bias": {"w5": 1}}, "invalid_request"),
        ({"logit_bias": {"999999999": 1}}, "invalid_request"),
        ({"bad_words": [""]}, "invalid_request"),
        ({"min_p": 2}, "invalid_request"),
        ({"continue_final_message": True}, "invalid_conversation"),
        ({"add_generation_prompt": False}, "invalid_request"),
        ({"nonsense": 1}, "unknown_parameter"),
        ({"seewhen": {"generation_config": {}}}, "unknown_parameter"),
        ({"temperature": -1}, "invalid_request"),
        ({"temperature": "1"}, "invalid_request"),
        ({"top_p": 0}, "invalid_request"),
        ({"n": 0}, "invalid_request"),
        ({"n": 1.5}, "invalid_request"),
        ({"stop": ["a"] * 5}, "invalid_request"),
        ({"stop": ""}, "invalid_request"),
        ({"messages": []}, "invalid_request"),
        ({"messages": [{"role": "tool", "content": "w5"}]}, "invalid_request"),
        ({"messages": [{"role": "system", "content": question("w5", 1)[0]["content"]}]}, "invalid_request"),
        ({"messages": [{"role": "user", "content": "w5", "nickname": "x"}]}, "unknown_parameter"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "invalid_request"),
        ({"messages": [{"role": "assistant", "content": "w5"}]}, "invalid_conversation"),
        ({"messages": [{"role": "user", "content": "w5 <image> w6"}]}, "reserved_text"),
        ({"messages": [{"role": "user", "content": "w5</s>"}]}, "reserved_text"),
        ({"top_logprobs": 2}, "invalid_request"),
        ({"max_tokens": 5000}, "limit_exceeded"),
        ({"n": 9}, "limit_exceeded"),
        ({"seewhen": {"trace": True}, "max_tokens": 300}, "limit_exceeded"),
        ({"seewhen": {"trace": True}, "n": 2}, "unsupported_combination"),
        ({"seewhen": {"num_beams": 9}}, "limit_exceeded"),
        ({"messages": question("w5", *range(9))}, "limit_exceeded"),
        ({"messages": question("w5 " * 12_000)}, "limit_exceeded"),
        ({"messages": question("w5 " * 2_000)}, "context_length_exceeded"),
        ({"messages": question("w5", 1) * 65}, "limit_exceeded"),
        ({"seewhen": {"method": "none-such"}}, "invalid_method"),
        ({"seewhen": {"method": "../../etc"}}, "invalid_request"),
        ({"seewhen": {"method": "cai", "preset": "none-such"}}, "invalid_method"),
        ({"seewhen": {"parameters": {"nonsense": 1}}}, "invalid_method"),
        ({"seewhen": {"parameters": {"threshold": "high"}}}, "invalid_method"),
        ({"seewhen": {"parameters": {"self": 1}}}, "invalid_method"),
        ({"seewhen": {"method": "cai", "parameters": {"preset": 1}}}, "invalid_method"),
        ({"seewhen": {"method": "cai", "parameters": {"name": 1}}}, "invalid_method"),
        ({"seewhen": {"method": "cai:preset=paper"}}, "invalid_method"),
        ({"seewhen": {"parameters": {"strength": True}}}, "invalid_method"),
        ({"seewhen": {"parameters": {"source_layer": 10**9}}}, "invalid_method"),
        ({"seewhen": {"parameters": {"source_layer": -1000}}}, "invalid_method"),
        ({"seewhen": {"parameters": {"relevance": "none-such"}}}, "invalid_method"),
        ({"seewhen": {"parameters": {"floor": [1]}}}, "invalid_request"),
        ({"seewhen": {"parameters": {"start_layer": 400}}}, "invalid_request"),
        # Paths, sentences and token ids are not for strangers.
        ({"seewhen": {"method": "vti", "parameters": {"directions": "/etc/passwd"}}}, "invalid_method"),
        ({"seewhen": {"method": "icd", "parameters": {"sentence": "w5"}}}, "invalid_method"),
        ({"seewhen": {"method": "opera", "parameters": {"candidates": 500}}}, "invalid_method"),
        ({"seewhen": {"method": "vcd", "parameters": {"noise_seed": None}}}, "invalid_method"),
        ({"seewhen": {"method": "cai+vcd", "parameters": {"nonsense": 1}}}, "invalid_method"),
        ({"seewhen": {"method": "cai+vti:directions=/etc/passwd"}}, "invalid_method"),
    ],
)
def test_refused_requests(server: Running, change: dict[str, Any], expected: str) -> None:
    assert code(post(server, {**SMALL, **change}), 400) == expected


def test_values_that_change_nothing_are_accepted(server: Running) -> None:
    silent = {
        "frequency_penalty": 0,
        "tools": [],
        "parallel_tool_calls": False,
        "response_format": {"type": "text"},
        "user": "me",
        "store": False,
    }
    assert post(server, {**SMALL, **silent, "stop": None, "seed": None, "logit_bias": {}}).status_code == 200


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"stop": list("abcde")}, "stop: list should have at most 4 items"),
        ({"stop": [""]}, "stop.0: string should have at least 1 character"),
        ({"stop": ""}, "stop: string should have at least 1 character"),
        ({"temperature": "warm"}, "temperature: input should be a valid number"),
        ({"temperature": "warm", "n": 0}, "temperature: input should be a valid number"),
        ({"temperature": 3, "n": 0}, "temperature: input should be less than"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages.0.content: input should be a valid string"),
    ],
)
def test_what_is_wrong_is_said_of_the_kind_of_value_that_was_sent(
    server: Running, change: dict[str, Any], said: str
) -> None:
    reply = post(server, {**SMALL, **change})
    assert code(reply, 400) == "invalid_request" and said in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"model": "tiny", "messages": "\\ud800"}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"model":"tiny","messages":[{"role":"user","content":"w5"}],"temperature":NaN}',
        b'{"model":"tiny","messages":[{"role":"user","content":"w5"}],"seewhen":{"parameters":{"scale":Infinity}}}',
        b'{"model":"tiny","messages":[{"role":"user","content":"w5"}],"seed":1' + b"0" * 5000 + b"}",
    ],
)
def test_bodies_that_are_no_request(server: Running, body: bytes) -> None:
    assert code(post(server, body), 400) in ("invalid_json", "invalid_request", "limit_exceeded")


def test_transport(server: Running) -> None:
    assert code(post(server, SMALL, headers={"Content-Type": "text/plain"}), 415) == "not_json"
    assert code(post(server, SMALL, headers={"Origin": "https://evil.example"}), 403) == "foreign_origin"
    assert code(post(server, SMALL, headers={"Origin": "null"}), 403) == "foreign_origin"
    assert code(post(server, SMALL, headers={"Origin": "http://["}), 403) == "foreign_origin"
    assert code(post(server, SMALL, headers={"Host": "evil.example"}), 421) == "unknown_host"
    assert (
        code(post(server, SMALL, headers={"Host": f"127.0.0.1.evil.example:{server.port}"}), 421) == "unknown_host"
    )
    same = f"http://127.0.0.1:{server.port}"
    assert post(server, SMALL, headers={"Origin": same}).status_code == 200
    assert code(post(server, b" " * (17 << 20)), 413) == "body_too_large"

    def pieces():
        for _ in range(300):
            yield b" " * 65536

    assert code(post(server, pieces()), 413) == "body_too_large"
    assert code(get(server, "/nothing"), 404) == "not_found"
    refused = get(server, "/v1/chat/completions")
    assert code(refused, 405) == "method_not_allowed"
    assert "/v1/chat/completions does not take GET." in refused.json()["error"]["message"]
    assert code(post(server, {**SMALL, "model": "other"}), 404) == "model_not_found"
    assert get(server, "/docs").status_code == 404


def test_who_sends_everything_first_gets_the_refusal(server: Running) -> None:
    """A connection closed over unread bytes is reset: the answer would be lost to who is still sending."""
    size = 24 << 20
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Length: {size}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
        client.sendall(head.encode() + b" " * size)
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 413 ") and b"body_too_large" in answer


def test_who_is_silent_after_a_refusal_is_not_waited_for(server: Running) -> None:
    head = f"POST / HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Length: 999999999\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
        client.sendall(head.encode())
        answer = b"".join(iter(lambda: client.recv(65536), b""))  # to the end of the connection
    assert answer.startswith(b"HTTP/1.1 413 ")


def test_uploads_together_have_a_limit(serving: Callable[..., Any]) -> None:
    with serving(limits=Limits(bodies_bytes=500)) as server:
        refused = post(server, SMALL)
        assert code(refused, 429) == "too_busy" and refused.headers["retry-after"] == "5"
        assert get(server, "/healthz").status_code == 200


def test_requests_have_a_limit(serving: Callable[..., Any]) -> None:
    with serving(limits=Limits(requests=1)) as server, ThreadPoolExecutor(1) as pool:
        with held(server.engine):
            first = pool.submit(post, server, SMALL)
            until(lambda: bool(server.engine._running))
            refused = post(server, SMALL)
            assert code(refused, 429) == "too_busy" and refused.headers["retry-after"] == "5"
            assert get(server, "/healthz").status_code == 200  # probes always get through
        assert first.result().status_code == 200


def test_key(serving: Callable[..., Any]) -> None:
    key = "correct-horse-battery"
    with serving(key=key) as server:
        assert code(post(server, SMALL), 401) == "invalid_api_key"
        assert code(post(server, SMALL, headers={"Authorization": f"Bearer {key}x"}), 401) == "invalid_api_key"
        assert post(server, SMALL, headers={"Authorization": f"Bearer {key}"}).status_code == 200
        for path in ("/healthz", "/readyz", "/"):
            assert get(server, path).status_code == 200
        described = httpx2.get(
            f"{server.url}/openapi.json", headers={"Authorization": f"Bearer {key}"}, timeout=60
        )
        guarded = {(method, path) for path, found in described.json()["paths"].items() for method in found}
        guarded |= {("get", "/metrics"), ("get", "/openapi.json"), ("get", "/nothing"), ("delete", "/v1/models")}
        for method, path in guarded - {("get", "/healthz"), ("get", "/readyz")}:
            assert httpx2.request(method, server.url + path, timeout=60).status_code == 401, path
        assert [model.id for model in server.client(key).models.list()] == [MODEL]


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data",
        "http://127.0.0.1:1/x.png",
        "https://example.org/x.png",
        "file:///etc/passwd",
        "/etc/passwd",
        "gopher://x",
        "ftp://example.org/x.png",
        "data:text/html;base64,PGI+",
        "data:image/png,notbase64",
        "data:image/png;base64,@@@@",
        "data:image/png;base64,AAA",
        "data:,",
        "x" * 100_000,
    ],
)
def test_addresses_are_refused(server: Running, url: str) -> None:
    assert code(post(server, with_image(url)), 400) == "invalid_image_url"


def header_only_png(width: int, height: int) -> bytes:
    """A PNG that says it is large and has no pixels."""
    import struct
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def many_scans() -> bytes:
    data = encoded(picture(0, (64, 64)), "JPEG", progressive=True)
    return data[:-2] + data[data.rindex(b"\xff\xda") : -2] * 40 + data[-2:]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (encoded(Image.new("RGB", (1, 1))), "image_too_small"),
        (encoded(Image.new("RGB", (7, 100))), "image_too_small"),
        (encoded(Image.new("RGB", (8, 900))), "image_too_long"),
        (header_only_png(10_000, 10_000), "image_too_large"),
        (header_only_png(60_000, 60_000), "image_too_large"),
        (header_only_png(2**31 - 1, 2**31 - 1), "image_too_large"),
        (header_only_png(20_000, 300), "invalid_image"),  # would be shrunk, but has no pixels
        (header_only_png(100, 100), "invalid_image"),
        (encoded(picture(0, (64, 64)))[:200], "invalid_image"),
        (encoded(picture(), "GIF"), "invalid_image"),
        (encoded(picture(), "BMP"), "invalid_image"),
        (b"%PDF-1.4", "invalid_image"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "invalid_image"),
        (b"", "invalid_image"),
        (b"\x00" * (11 << 20), "image_too_large"),
        (many_scans(), "image_too_large"),
    ],
)
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_images_are_refused(server: Running, data: bytes, expected: str) -> None:
    assert code(post(server, with_image(data_url(data))), 400) == expected


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_images_are_accepted(server: Running, kind: str) -> None:
    for mode in ("RGB", "L") if kind == "JPEG" else ("RGB", "L", "RGBA", "P"):
        data = encoded(picture(0, (40, 30)).convert(mode), kind) if (kind, mode) != ("WEBP", "P") else None
        if data is not None:
            assert post(server, with_image(data_url(data, "whatever"))).status_code == 200


def test_images_together_have_a_limit(serving: Callable[..., Any]) -> None:
    with serving(limits=Limits(request_pixels=600)) as server:
        assert post(server, {**SMALL, "messages": question("w5", 1, 2)}).status_code == 200  # 2 x 256
        assert code(post(server, {**SMALL, "messages": question("w5", 1, 2, 3)}), 400) == "image_too_large"


def test_a_defect_of_ours_is_told_like_any_error(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def defect(*_: Any) -> None:
        raise RuntimeError("what only the log should have")

    monkeypatch.setattr("seewhen.server.app.Completion", defect)
    reply = post(server, SMALL)
    assert code(reply, 500) == "internal_error" and "only the log" not in reply.text


def test_healthy_after_all_that(server: Running) -> None:
    assert get(server, "/readyz").json() == {"status": "ready"}
    assert post(server, SMALL).status_code == 200


def test_refuses_to_start() -> None:
    limits = Limits()
    common: dict[str, Any] = {"method": seewhen.method("cai"), "limits": limits, "fetcher": Fetcher.of([], limits)}
    for host in ("0.0.0.0", "::", "192.168.1.4", "example.org"):
        with pytest.raises(InvalidInput, match="no API key"):
            Settings(host=host, **common)
    with pytest.raises(InvalidInput, match="at least 16"):
        Settings(host="0.0.0.0", key="short", **common)
    for host in ("127.0.0.1", "localhost", "::1", "127.0.0.2"):
        assert Settings(host=host, **common).key is None
    key = "k" * 16
    wide = Settings(host="0.0.0.0", key=key, **common)
    named = Settings(host="0.0.0.0", key=key, names=("gpu.example",), **common)
    assert wide.knows("anything:80") and named.knows("gpu.example:80") and not named.knows("anything:80")
    local = Settings(**common)
    assert local.knows("localhost:8000") and local.knows("[::1]:8000") and local.knows("127.0.0.1")
    assert not any(local.knows(name) for name in ("", "evil", "localhost.evil", "127.0.0.1:80:80", "[::1].evil:1"))


def test_limits_by_name() -> None:
    assert limits_of(["queue=5", "image-pixels=1_000"]) == Limits(queue=5, image_pixels=1000)
    for bad in ("nonsense=1", "queue", "queue=x", "queue=-1", "n=100"):
        with pytest.raises(InvalidInput):
            limits_of([bad])
    with pytest.raises(InvalidInput):
        model_names(["a/b", "a/b"])


def test_a_field_of_ours_at_the_top_is_shown_its_place() -> None:
    with pytest.raises(ApiError) as told:
        parse(json.dumps({"model": MODEL, "messages": question("w5", 1), "method": "cai"}).encode(), ChatRequest)
    assert told.value.code == "unknown_parameter" and told.value.hint == 'Write "seewhen": {"method": ...}.'


def test_a_taken_port_is_refused_in_words() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidInput, match=f"port {port}: "):
            check_address("127.0.0.1", port)
    check_address("127.0.0.1", 0)
