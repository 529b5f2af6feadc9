"""Large files in pieces with checksums, so that they can travel separately and be checked on arrival.

python -m photographs.pieces receive FOLDER STORE    take what came, say what is still missing
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from seewhen.atomic import replacing
from seewhen.errors import InvalidInput, SeewhenError

PIECE_BYTES = 26 << 20
MANIFEST = "pieces.json"


def checksum(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def cut(store: Path, out: Path, limit: int = PIECE_BYTES) -> dict[str, Any]:
    """Lists every file of the store; small ones are copied to `out`, large ones cut into it."""
    out.mkdir(parents=True, exist_ok=True)
    files: dict[str, Any] = {}
    for path in sorted(p for p in store.iterdir() if p.is_file() and not p.name.startswith(".")):
        if path.name == MANIFEST:
            continue
        entry: dict[str, Any] = {"sha256": checksum(path), "bytes": path.stat().st_size}
        if entry["bytes"] > limit:
            entry["pieces"] = _cut_one(path, out, limit)
        else:
            shutil.copyfile(path, out / path.name)
        files[path.name] = entry
    with replacing(out / MANIFEST) as name:
        Path(name).write_text(json.dumps(files, indent=1) + "\n", encoding="utf-8")
    return files


def _cut_one(path: Path, folder: Path, limit: int) -> dict[str, str]:
    names = {}
    with path.open("rb") as stream:
        for number, content in enumerate(iter(lambda: stream.read(limit), b"")):
            part = folder / f"{path.name}.{number:02d}"
            part.write_bytes(content)
            names[part.name] = checksum(part)
    return names


def receive(folder: Path, store: Path) -> list[str]:
    """Moves what lies in `folder` into the store, joins what is complete, returns the names still missing."""
    store.mkdir(parents=True, exist_ok=True)
    if (folder / MANIFEST).is_file():
        shutil.copyfile(folder / MANIFEST, store / MANIFEST)
    if not (store / MANIFEST).is_file():
        raise InvalidInput(f"Neither {folder} nor {store} has {MANIFEST}.", "Send it with the first pieces.")
    files = json.loads((store / MANIFEST).read_text("utf-8"))
    known = {name: entry["sha256"] for name, entry in files.items()}
    for entry in files.values():
        known |= entry.get("pieces", {})
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.name in known:
            if checksum(path) != known[path.name]:
                raise InvalidInput(f"{path.name} arrived damaged.", "Send it again.")
            # Elsewhere first: whoever watches the store never sees half a file.
            waiting = store / f".{path.name}"
            shutil.move(path, waiting)
            waiting.replace(store / path.name)
    for name, entry in files.items():
        _join(store, name, entry)
    return [
        n for name, entry in files.items() if not (store / name).is_file() for n in _lacking(store, name, entry)
    ]


def _lacking(store: Path, name: str, entry: dict[str, Any]) -> list[str]:
    return [piece for piece in entry.get("pieces", {name: ""}) if not (store / piece).is_file()]


def _join(store: Path, name: str, entry: dict[str, Any]) -> None:
    if "pieces" not in entry or (store / name).is_file() or _lacking(store, name, entry):
        return
    with replacing(store / name) as part:
        with open(part, "wb") as out:
            for piece in entry["pieces"]:
                out.write((store / piece).read_bytes())
        if checksum(Path(part)) != entry["sha256"]:
            raise InvalidInput(f"{name} does not fit together.", "Send its pieces again.")
    for piece in entry["pieces"]:
        (store / piece).unlink()


def main() -> None:
    match sys.argv[1:]:
        case ["cut", store, out, mib]:
            cut(Path(store), Path(out), int(mib) << 20)
        case ["receive", folder, store]:
            try:
                missing = receive(Path(folder), Path(store))
            except SeewhenError as error:
                sys.exit(f"error: {error}")
            print("all there" if not missing else f"still missing: {' '.join(missing)}")
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
