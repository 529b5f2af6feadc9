"""Pictures are decoded in processes of their own, which can be ended: when time is up, or the client is gone."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process

from PIL import Image

from seewhen.server.failures import ApiError, bad_picture
from seewhen.server.limits import Limits

_PROCESSES = 4  # at most; a decoded picture is large
_BUFFER = 1 << 20


class Darkroom:
    """Decodes pictures, a few at a time."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._places = asyncio.Semaphore(min(_PROCESSES, os.cpu_count() or 1))
        self._idle: list[Process] = []

    async def decoded(self, data: bytes, deadline: float) -> Image.Image:
        """The picture in the file `data`, or what is wrong with it; `deadline` is of time.monotonic()."""
        try:
            async with asyncio.timeout(deadline - time.monotonic()), self._places:
                process = self._idle.pop() if self._idle else await self._started()
                try:
                    async with asyncio.timeout(self._limits.image_seconds):
                        image = await _ask(process, data)
                except BaseException as error:
                    if not isinstance(error, ApiError):  # an answer leaves the process as good as new
                        await _end(process)
                        raise
                    self._idle.append(process)
                    raise
                self._idle.append(process)
                return image
        except TimeoutError:
            raise bad_picture("image_too_slow", "The image takes too long to decode.", "Save it again.") from None
        except (asyncio.IncompleteReadError, ConnectionError):
            raise bad_picture("invalid_image", "The image cannot be decoded.", "Is it complete?") from None

    async def close(self) -> None:
        """End all processes."""
        while self._idle:
            await _end(self._idle.pop())

    async def _started(self) -> Process:
        limits = json.dumps(dataclasses.asdict(self._limits))
        command = (sys.executable, "-P", "-m", "seewhen.server.picture_process", limits)
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # whose threads reserve memory it may not have
        process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, limit=_BUFFER, env=environment
        )
        try:
            assert process.stdout is not None
            await process.stdout.readexactly(len(b"ready\n"))
        except BaseException:
            await _end(process)
            raise
        return process


async def _ask(process: Process, data: bytes) -> Image.Image:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(len(data).to_bytes(8, "big"))
    process.stdin.write(data)
    await process.stdin.drain()
    told = json.loads(await process.stdout.readuntil(b"\n"))
    if "code" in told:
        raise bad_picture(told["code"], told["message"], told["hint"])
    width, height = told["size"]
    return Image.frombytes("RGB", (width, height), await process.stdout.readexactly(3 * width * height))


async def _end(process: Process) -> None:
    if process.returncode is None:
        process.kill()
    if process.stdin is not None:
        process.stdin.close()
    await process.wait()
