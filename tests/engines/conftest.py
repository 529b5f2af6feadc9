"""vLLM on a CPU with the models of the package, in an environment of its own, which `make engine-test` makes."""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import seewhen
from seewhen.backbones.loading import check_name, resolve
from seewhen.errors import SeewhenError

PYTHON = os.environ.get("SEEWHEN_ENGINE", "")
PATIENCE = 600  # seconds until it must be ready; 40 on two idle cores
# Native LLaVA of vLLM refuses this tower's names of weights, transformers' own takes them.
OPTIONS = """--model-impl transformers --dtype float32
--enforce-eager --max-model-len 1024 --max-num-seqs 8 --max-num-batched-tokens 1024 --skip-mm-profiling
--max-logprobs 100 --generation-config vllm --enable-prompt-tokens-details --host 127.0.0.1"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without an engine these are skipped, and say so."""
    for item in items:
        if Path(__file__).parent in item.path.parents and not PYTHON:
            item.add_marker(pytest.mark.skip(reason="no engine (make engine-test)"))


@pytest.fixture(scope="session", params=["packaged", "photo"])
def name(request: pytest.FixtureRequest) -> str:
    """A model of the package; the one for photographs only where its language model is installed."""
    try:
        check_name(request.param)
    except SeewhenError as error:
        pytest.skip(str(error))
    return str(request.param)


@pytest.fixture(scope="session")
def engine(name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a running engine."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("engine") / "log"
    command = [PYTHON, "-m", "vllm.entrypoints.openai.api_server", *OPTIONS.split(), "--port", str(port)]
    command += ["--model", resolve(name), "--served-model-name", name]
    command += ["--limit-mm-per-prompt", '{"image":1}']
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    environment.pop("OMP_NUM_THREADS", None)  # it binds threads by itself
    environment.pop("PYTHONPATH", None)  # ours are of another environment
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)
    try:
        _wait(process, f"http://127.0.0.1:{port}/health", log)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    end = time.monotonic() + PATIENCE
    while True:
        assert process.poll() is None, _end_of(log)
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except (OSError, urllib.error.URLError):
            if time.monotonic() > end:
                pytest.fail(f"The engine was not ready within {PATIENCE} seconds: {_end_of(log)}")
            time.sleep(0.5)


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace")[-3000:]


@pytest.fixture(scope="session")
def remote(engine: str, name: str) -> Iterator[Any]:
    """The served model. Its template writes no BOS, which the engine adds when told to."""
    model = seewhen.remote(engine, name, options={"add_special_tokens": True})
    yield model
    model.close()


@pytest.fixture(scope="session")
def loaded(name: str) -> Any:
    """The same model here."""
    return seewhen.load(name, device="cpu", dtype="float32")
