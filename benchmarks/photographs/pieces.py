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

PIECE_BYTES = 25 << 20
MANIFEST = "pieces.json"


def checksum(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def cut(store: Path) -> dict[str, Any]:
    """Lists every file of the store; those too large for one piece are cut into `store/cut`."""
    folder = store / "cut"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    files: dict[str, Any] = {}
    for path in sorted(p for p in store.iterdir() if p.is_file() and p.name != MANIFEST):
        entry: dict[str, Any] = {"sha256": checksum(path), "bytes": path.stat().st_size}
        if entry["bytes"] > PIECE_BYTES + (1 << 20):
            entry["pieces"] = _cut_one(path, folder)
        files[path.name] = entry
    with replacing(store / MANIFEST) as name:
        Path(name).write_text(json.dumps(files, indent=1) + "\n", encoding="utf-8")
    return files


def _cut_one(path: Path, folder: Path) -> dict[str, str]:
    names = {}
    with path.open("rb") as stream:
        for number, content in enumerate(iter(lambda: stream.read(PIECE_BYTES), b"")):
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
            shutil.move(path, store / path.name)
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
    if len(sys.argv) != 4 or sys.argv[1] != "receive":
        sys.exit("usage: python -m photographs.pieces receive FOLDER STORE")
    try:
        missing = receive(Path(sys.argv[2]), Path(sys.argv[3]))
    except SeewhenError as error:
        sys.exit(f"error: {error}")
    print("all there" if not missing else f"still missing: {' '.join(missing)}")


if __name__ == "__main__":
    main()
