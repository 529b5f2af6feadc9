"""Common mistakes are refused before torch is imported: nobody waits seconds for the news of a typing error."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile

import pytest
from every import commands, paths

# Runs commands one after the other; says of each what it told, how it ended, what slow package it imported.
_CODE = """
import contextlib, io, json, sys
from seewhen.cli import main
ended = {}
for command in json.load(sys.stdin):
    sys.argv = ["seewhen", *command.split()]
    with contextlib.redirect_stderr(io.StringIO()) as told, contextlib.suppress(SystemExit):
        try:
            main()
        finally:
            code = getattr(sys.exception(), "code", None)
            heavy = [name for name in ("torch", "transformers") if sys.modules.pop(name, None)]
            ended[command] = (told.getvalue(), code, heavy)
print(json.dumps(ended))
"""

MISTAKES = {
    "eval pope --method bogus": "no method 'bogus'",
    "eval pope --method=": "No method is named",
    "describe a.png --method=": "a place without a method's name",
    "eval pope --method regular,cai+bogus": "no method 'bogus'",
    "eval bogus": "no benchmark 'bogus'",
    "eval pope,bogus": "no benchmark 'bogus'",
    "eval pope --data nowhere": "no folder nowhere",
    "eval pope --split bogus": "no part 'bogus'",
    "eval pope --split test-bogus": "pope has no split 'test-bogus'",
    "eval chair --split test-popular": "chair has no split",
    "eval pope --data . --split bogus": "no split 'bogus'",
    "eval mme --data . --split bogus": "no split 'bogus'",
    "eval pope --data . --images nowhere": "no folder nowhere",
    "eval pope --style bogus": "no prompt style 'bogus'",
    "eval pope --scenes 0": "asks for nothing",
    "eval pope --temperature 0.5": "--temperature does nothing in greedy decoding. Add --seeds",
    "eval pope --noise hash": "--noise does nothing in greedy decoding",
    "eval pope --seeds 1 --temperature nan": "temperature nan is out of range",
    "eval pope --seeds 1 --temperature -1": "temperature -1.0 is out of range",
    "try packaged . --do-sample --temperature inf": "temperature inf is out of range",
    "describe a.png --do-sample --temperature 0": "temperature 0.0 is out of range",
    "describe a.png --do-sample --temperature nan": "temperature nan is out of range",
    "describe a.png --do-sample --top-p 2": "top-p 2.0 is out of range",
    "describe a.png --do-sample --top-k -3": "top-k -3 is out of range",
    "describe a.png --do-sample --min-p 1.5": "min-p 1.5 is out of range",
    "describe a.png --repetition-penalty 0": "repetition-penalty 0.0 is out of range",
    "describe a.png --seed -1": "seed -1 is out of range",
    "ask a.png q --seed 99999999999999999999": "seed 99999999999999999999 is out of range",
    "demo --top-p 0": "top-p 0.0 is out of range",
    "eval pope --scenes 2 --data .": "--scenes counts packaged scenes",
    "eval pope --data .": "pope/coco-random is not in .",
    "eval chair --data .": "is not in .",
    "eval mme --data .": "is not in .",
    "eval pope --method vti": "vti needs directions fitted for this model",
    "eval pope --method ict:directions=nowhere": "no file nowhere",
    "compare a.png --methods regular,vti": "vti needs directions",
    "serve --method vti": "vti needs directions",
    "eval pope --device bogus": "no device 'bogus'",
    "eval pope --device cpu,bogus": "no device 'bogus'",
    "sweep pope --grid gamma=0.1 --device bogus": "no device 'bogus'",
    "serve --device bogus": "no device 'bogus'",
    "describe a.png --device bogus": "no device 'bogus'",
    "try packaged . --device bogus": "no device 'bogus'",
    "serve --upstream notaurl": "'notaurl' is no address of a server",
    "report nowhere": "nowhere",
    "eval pope --engine bogus": "no engine 'bogus'",
    "eval pope --model ./nowhere": "no directory ./nowhere",
    "eval pope --dtype int3": "no dtype 'int3'",
    "eval pope --set contrast": "is not name=value",
    "eval pope --out /dev/null/runs": "/dev/null/runs is no folder that can be written to",
    "eval pope --run /dev/null/run": "/dev/null/run is no folder that can be written to",
    "sweep pope --grid gamma=0.1 --out /dev/null/sweep": "is no folder that can be written to",
    "report . --out /dev/null/report": "is no folder that can be written to",
    "figure case --out /dev/null/a.png": "/dev/null/a.png cannot be written",
    "figure case --data /dev/null/a.json": "/dev/null/a.json cannot be written",
    "calibrate vti --out /dev/null/a": "/dev/null/a cannot be written",
    "calibrate ict --out .": ". cannot be written",
    "calibrate ict --out /dev/null/a": "/dev/null/a cannot be written",
    "bench --out /dev/null/a": "/dev/null/a.json cannot be written",
    "data get pope --to /dev/null/a --yes": "is no folder that can be written to",
    "scenes render --out /dev/null/a": "is no folder that can be written to",
    "demo --out /dev/null/a": "is no folder that can be written to",
    "describe a.png --html /dev/null/a.html": "/dev/null/a.html cannot be written",
    "describe a.png --trace /dev/null/a": "/dev/null/a cannot be written",
    "ask a.png Why? --html /dev/null/a.html": "/dev/null/a.html cannot be written",
    "ask a.png Why? --trace /dev/null/a": "/dev/null/a cannot be written",
    "compare a.png --html /dev/null/a.html": "/dev/null/a.html cannot be written",
    "compare a.png --trace /dev/null/a": "cannot be written",
    "check a.png cat --html /dev/null/a.html": "/dev/null/a.html cannot be written",
    "check a.png cat --out /dev/null/a": "/dev/null/a cannot be written",
    "view . --out /dev/null/a.html": "/dev/null/a.html cannot be written",
    "calibrate confirm --out /dev/null/a": "/dev/null/a cannot be written",
    "score pope --questions a --answers b --rows /dev/null/a": "/dev/null/a cannot be written",
    "try packaged . --out /dev/null/a": "is no folder that can be written to",
    "try packaged . --methods regular,bogus": "no method 'bogus'",
    "try packaged nowhere": "no file or folder nowhere",
    "try packaged . --temperature 2": "Add --do-sample",
    "sweep bogus --grid gamma=0.1": "no benchmark 'bogus'",
    "sweep pope --grid gamma": "is not a grid",
    "sweep pope --grid gamma=0.1 --method bogus": "no method 'bogus'",
    "sweep pope --grid gamma=0.1 --split bogus": "no part 'bogus'",
    "sweep pope --grid gamma=0.1 --limit 0": "asks for nothing",
    "serve --method bogus": "no method 'bogus'",
    "serve --model ./nowhere": "no directory ./nowhere",
    "serve --limit bogus=1": "no limit 'bogus'",
    "serve --host 0.0.0.0": "there is no API key",
    "serve --log-level bogus": "no log level 'bogus'",
    "serve --dtype int3": "no dtype 'int3'",
    "bench --method cai:contrast=3,threshold=0.2,bogus": "no method 'bogus'",
    "bench --batch 0": "not a list of positive numbers",
    "bench ./nowhere": "no directory ./nowhere",
    "bench photo": "nowhere.gguf, which is no file",
    "eval pope --model photo": "nowhere.gguf, which is no file",
    "serve --model photo": "nowhere.gguf, which is no file",
    "doctor --model photo": "nowhere.gguf, which is no file",
    "describe nowhere.png": "no file nowhere.png",
    "describe nowhere.png --method bogus": "no method 'bogus'",
    "compare nowhere.png --methods regular,bogus": "no method 'bogus'",
    "ask nowhere.png Why? --model ./nowhere": "no file nowhere.png",
    "figure case --method bogus": "no method 'bogus'",
    "figure case --set contrast": "is not name=value",
    "methods bogus": "no method 'bogus'",
    "eval pope --method cai:bogus": "cai has no preset 'bogus'",
    "eval pope --method cai:bogus=1": "cai has no parameter 'bogus'",
    "eval pope --method regular,cai:contrast=high": "contrast takes a number",
    "eval pope --method cai:tilt=up": "tilt takes score or exponential",
    "eval pope --method regular,cai --set bogus=1": "regular and cai have no parameter 'bogus'",
    "serve --method cai:bogus=1": "cai has no parameter 'bogus'",
    "serve --set contrast=high": "contrast takes a number",
}


@functools.cache
def ended() -> dict[str, tuple[str, int, list[str]]]:
    """All commands in one process, in an empty folder."""
    # Whether the language model for photographs is installed here does not matter then.
    where = os.environ | {"SEEWHEN_SMOLLM2": "nowhere.gguf"}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", _CODE],
            input=json.dumps(list(MISTAKES)),
            capture_output=True,
            text=True,
            cwd=folder,
            env=where,
        )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# Options that name a file or a folder to read.
READ = (
    "--answers",
    "--api-key-file",
    "--data",
    "--image",
    "--images",
    "--objects",
    "--questions",
    "--run",
    "--samples",
)


def test_every_option_that_writes_is_here() -> None:
    """`--trace`, `--run` and `--data` write in some commands and read in others."""
    writes = {"eval --run", "figure --data"} | {f"{name} --trace" for name in ("describe", "ask", "compare")}
    for name, command in commands():
        for option in paths(command):
            if f"{name} {option}" in writes or option not in (*READ, "--trace"):
                asked = [said for said in MISTAKES if said.startswith(name) and f"{option} /dev/null/" in said]
                assert asked, f"{name} {option} is not tried with a file that cannot be written"


@pytest.mark.parametrize("command", MISTAKES)
def test_mistakes_are_refused_before_torch(command: str) -> None:
    told, code, heavy = ended()[command]
    assert MISTAKES[command] in told and told.count("\n") == 1, told
    assert (code, heavy) == (2, [])
