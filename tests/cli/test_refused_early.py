"""Common mistakes are refused before torch is imported: nobody waits seconds for the news of a typing error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Runs one command, then says which of the slow packages it had to import.
_CODE = """
import sys
sys.argv[0] = "seewhen"
from seewhen.cli import main
try:
    main()
except SystemExit as end:
    print([name for name in ("torch", "transformers") if name in sys.modules], end.code)
"""

MISTAKES = {
    "eval pope --method bogus": "no method 'bogus'",
    "eval pope --method regular,cai+bogus": "no method 'bogus'",
    "eval bogus": "no benchmark 'bogus'",
    "eval pope,bogus": "no benchmark 'bogus'",
    "eval pope --data nowhere": "no folder nowhere",
    "eval pope --split bogus": "no part 'bogus'",
    "eval pope --split test-bogus": "no POPE setting 'bogus'",
    "eval chair --split test-popular": "chair has no split",
    "eval pope --data . --split bogus": "no split 'bogus'",
    "eval mme --data . --split bogus": "no split 'bogus'",
    "eval pope --data . --images nowhere": "no folder nowhere",
    "eval pope --style bogus": "no prompt style 'bogus'",
    "eval pope --scenes 0": "asks for nothing",
    "eval pope --engine bogus": "no engine 'bogus'",
    "eval pope --model ./nowhere": "no directory ./nowhere",
    "eval pope --dtype int3": "no dtype 'int3'",
    "eval pope --set contrast": "is not name=value",
    "eval pope --method all --set contrast=3": "belongs to one method",
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
    "bench --method cai+contrast,bogus": "no method 'bogus'",
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
    "methods bogus": "no method 'bogus'",
}


@pytest.mark.parametrize("command", MISTAKES)
def test_mistakes_are_refused_before_torch(command: str, tmp_path: Path) -> None:
    # Whether the language model for photographs is installed here does not matter then.
    where = os.environ | {"SEEWHEN_SMOLLM2": "nowhere.gguf"}
    code = [sys.executable, "-c", _CODE, *command.split()]
    done = subprocess.run(code, capture_output=True, text=True, cwd=tmp_path, env=where, check=True)
    assert MISTAKES[command] in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert done.stdout.strip() == "[] 2"
