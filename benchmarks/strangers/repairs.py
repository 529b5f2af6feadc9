"""Undoes repairs one by one, in a copy of the package, and looks whether their tests fail.

    python benchmarks/strangers/repairs.py --out benchmarks/strangers/results/repairs.md

Exit code 1 if a test passes without its repair. `--only top_p` for those whose name has these letters.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]


class Repair(NamedTuple):
    """`new` in place of `old` undoes it in `file`; then `tests`, in pytest's words, must fail."""

    what: str
    file: str
    old: str
    new: str
    tests: str


PICTURES, STRANGERS = "tests/backbones/test_pictures.py", "tests/server/test_strangers.py"
BOUNDS, MODELS = "tests/server/test_bounds.py", "tests/cli/test_strangers_models.py"
READING, GET = "tests/test_reading.py", "tests/benchmarks/test_data_get.py"
REPAIRS = (
    Repair(
        "EXIF rotation",
        "backbones/pictures.py",
        "if orientation in _UPRIGHT:",
        "if False:",
        f"{PICTURES} -k upright",
    ),
    Repair(
        "16-bit grey",
        "backbones/pictures.py",
        "return _eight_bits(image).convert",
        "return image.convert",
        f"{PICTURES} -k deep_grey",
    ),
    Repair(
        "transparency",
        "backbones/pictures.py",
        'image.size, "white"',
        'image.size, "black"',
        f"{PICTURES} -k transparent",
    ),
    Repair(
        "48 megapixels",
        "backbones/pictures.py",
        "image.draft(None, (image",
        "max(None or (), (image",
        f"{PICTURES} -k forty_eight",
    ),
    Repair(
        "HEIC", "backbones/pictures.py", "        register_heif_opener()", "        pass", f"{PICTURES} -k heic"
    ),
    Repair(
        "offloaded heads",
        "backbones/backbone.py",
        'states if held.device.type == "meta" else states.to(held.device)',
        "states.to(held.device)",
        "tests/decoding/test_offloaded.py",
    ),
    Repair(
        "--out is checked first",
        "cli/options.py",
        "if path is not None and (path.is_dir()",
        "if path is not None and () and (path.is_dir()",
        "tests/cli/test_refused_early.py -k null",
    ),
    Repair(
        "Ctrl-C while importing",
        "__main__.py",
        "except KeyboardInterrupt:",
        "except ZeroDivisionError:",
        "tests/cli/test_ctrl_c.py -k package",
    ),
    Repair(
        "Ctrl-C at a question",
        "cli/data.py",
        "            _ask(f",
        "            typer.confirm(abort=True, err=True, text=f",
        f"{GET} -k question",
    ),
    Repair("[image, None]", "asking/answers.py", "() if image is None else ", "", "tests/asking/test_asker.py"),
    Repair(
        "control characters in captions",
        "verdicts/inflections.py",
        r"[^\s{_ALONE}.,:'-]",
        r"[^\W{_ALONE}.,:'-]",
        "tests/benchmarks/test_lemmatise.py -k tokens",
    ),
    Repair(
        "silent sockets",
        "server/guard.py",
        '({} if body.complete else {"Connection": "close"})',
        "{}",
        f"{STRANGERS} -k reply_before",
    ),
    Repair(
        "millions of values",
        "server/schema.py",
        "    if has_too_many(",
        "    if 0 * has_too_many(",
        f"{BOUNDS} -k million",
    ),
    Repair(
        "many entries in one place", "server/schema.py", "    _check_entries(value)\n", "", f"{BOUNDS} -k million"
    ),
    Repair(
        "parsing off the loop",
        "server/app.py",
        "await asyncio.to_thread(\n            parse,",
        "(lambda f, *a: f(*a))(\n            parse,",
        f"{BOUNDS} -k parsing",
    ),
    Repair(
        "JPEG of many scans",
        "backbones/pictures.py",
        "if scans > limits.scans:",
        "if False:",
        f"{PICTURES} -k many_scans",
    ),
    Repair(
        "decoding under the request's deadline",
        "server/darkroom.py",
        "asyncio.timeout(deadline - time.monotonic()), self._places",
        "self._places",
        f"{BOUNDS} -k given_up",
    ),
    Repair(
        "decoding that is ended",
        "server/darkroom.py",
        "asyncio.timeout(self._limits.image_seconds)",
        "asyncio.timeout(None)",
        f"{BOUNDS} -k given_up",
    ),
    Repair(
        "places by the limit on open files",
        "server/connections.py",
        "min(limits.connections, free * 3 // 4)",
        "limits.connections",
        f"{STRANGERS} -k limit_on_open",
    ),
    Repair(
        "newcomers get a place",
        "server/connections.py",
        "            oldest.transport.abort()\n",
        "",
        f"{STRANGERS} -k newcomers",
    ),
    Repair(
        "a sparing log", "server/logs.py", "if self._seen[kind] > _OFTEN:", "if False:", f"{STRANGERS} -k sparing"
    ),
    Repair(
        "marks of several parts",
        "server/prompting.py",
        "        if forged:",
        "        if False:",
        f"{BOUNDS} -k several_parts",
    ),
    Repair(
        "Origin: http://[",
        "server/guard.py",
        "origin not in (",
        '__import__("urllib.parse").parse.urlsplit(origin).netloc and origin not in (',
        "tests/server/test_safety.py -k transport",
    ),
    Repair(
        "source_layer=-1000",
        "methods/cai.py",
        "require(self.source_layer >= 0",
        "require(True",
        f"{BOUNDS} -k any_number",
    ),
    Repair(
        "uploads that break off",
        "server/guard.py",
        "raise client_gone()",
        "raise RuntimeError",
        f"{STRANGERS} -k breaks_off",
    ),
    Repair(
        "tiny top_p",
        "equations/drawing.py",
        "    enough[:, 0] = False",
        "    pass",
        "tests/server/test_text.py -k likeliest",
    ),
    Repair(
        "half an upload and SIGTERM",
        "server/connections.py",
        "if self.awaited and self.cycle is not None",
        "if False and self.cycle is not None",
        f"{STRANGERS} -k half_an_upload",
    ),
    Repair(
        "is_public(fec0::1)",
        "server/fetching.py",
        "if address not in _UNICAST:",
        "if False:",
        "tests/server/test_fetching.py -k not_public",
    ),
    Repair(
        "random numbers of each model",
        "server/decoding.py",
        'options["generators"] =',
        'options.get("generators") or',
        f"{BOUNDS} -k two_models",
    ),
    Repair("no remote code", "backbones/hub.py", ', "trust_remote_code": False}', "}", f"{MODELS} -k functions"),
    Repair(
        "safetensors only",
        "backbones/loading.py",
        "use_safetensors=True",
        "use_safetensors=False",
        f"{MODELS} -k pickled_weights",
    ),
    Repair(
        "files of another form",
        "reading.py",
        "(LookupError, TypeError, ValueError, A",
        "(A",
        f"{READING} -k spoiled",
    ),
    Repair(
        "GGUF that claims much",
        "backbones/photo/gguf.py",
        "self.size - self.stream.tell():",
        "2**200:",
        f"{READING} -k gguf",
    ),
    Repair(
        "deep JSON",
        "reading.py",
        "            return found\n    raise",
        "            return found\n    return found\n    raise",
        f"{READING} -k odd_json",
    ),
    Repair(
        "gzip bomb",
        "reading.py",
        "min(largest, max(_UNPACKED, _RATIO * len(raw)))",
        "largest",
        f"{READING} -k bomb",
    ),
    Repair(
        "thousands of zeros",
        "benchmarks/chair/coco.py",
        r"(\d+)(?:\.\w+)?",
        r"0*(\d+)(?:\.\w+)?",
        f"{READING} -k long_names",
    ),
    Repair(
        "names in LaTeX",
        "runs/grid.py",
        "for character in one_line(text))",
        "for character in text)",
        "tests/runs/test_escaping.py -k latex",
    ),
    Repair(
        "names in Markdown",
        "runs/grid.py",
        '"<": "&lt;", ',
        '"<": "<", ',
        "tests/runs/test_escaping.py -k markdown",
    ),
    Repair(
        "samples that vanish",
        "runs/store.py",
        "if there is None or not",
        "if False and not",
        "tests/runs/test_store.py -k vanish",
    ),
    Repair(
        "downloads end where the file ends",
        "benchmarks/download.py",
        "remote.size if remote.size is not None else _LARGEST",
        "_LARGEST",
        f"{GET} -k lies",
    ),
    Repair(
        "a bad Content-Length",
        "benchmarks/download.py",
        "if not (length.isascii()",
        "if not (True or length.isascii()",
        f"{GET} -k lies",
    ),
)


def fails_without(repair: Repair, package: Path) -> bool:
    """Whether the tests of a repair notice that it is undone in this copy."""
    file = package / "seewhen" / repair.file
    sound = file.read_text()
    assert sound.count(repair.old) >= 1, f"{repair.what}: {repair.old!r} is not in {repair.file}"
    file.write_text(sound.replace(repair.old, repair.new))
    try:
        # The last words may have spaces and would not survive a plain split.
        tests, _, chosen = repair.tests.partition(" -k ")
        command = [sys.executable, "-m", "pytest", "-qx", *tests.split(), *(["-k", chosen] if chosen else [])]
        environment = os.environ | {"PYTHONPATH": str(package)}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200)
    except subprocess.TimeoutExpired:  # what the repair ended goes on for hours
        return True
    finally:
        file.write_text(sound)
    assert done.returncode in (0, 1), f"{repair.what}: {done.stdout[-2000:]}"
    return done.returncode == 1


def _kept(out: Path | None) -> dict[str, str]:
    """Rows of an earlier table: `--only` writes its own anew."""
    lines = out.read_text().splitlines(keepends=True) if out and out.exists() else []
    return {line.split(" | ")[0].removeprefix("| "): line for line in lines if line.startswith("| ")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="repairs with this in their name")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows, passed = _kept(options.out), []
    with tempfile.TemporaryDirectory() as folder:
        package = Path(shutil.copytree(ROOT / "src", Path(folder, "src")))
        for repair in REPAIRS:
            if options.only in repair.what:
                failed = fails_without(repair, package)
                passed += [] if failed else [repair.what]
                print(f"{repair.what}: {'fails' if failed else 'PASSES'} without it", flush=True)
                answer = "yes" if failed else "**no**"
                rows[repair.what] = f"| {repair.what} | `{repair.file}` | `{repair.tests}` | {answer} |\n"
    if options.out:
        head = "| repair | in `src/seewhen` | its tests | they fail without it |\n|---|---|---|---|\n"
        table = "".join(rows[repair.what] for repair in REPAIRS if repair.what in rows)
        options.out.write_text(f"Written by `benchmarks/strangers/repairs.py`.\n\n{head}{table}")
    sys.exit(bool(passed))


if __name__ == "__main__":
    main()
