"""Packs the captions for the repository: `python -m confirm.archive RUNS`.

Runs say nearly the same of the same pictures. Compressed each by itself they take three times the room, so their
gzip files are stored here without compression and all of them are compressed together.
"""

from __future__ import annotations

import argparse
import gzip
import io
import tarfile
from pathlib import Path

from seewhen.atomic import replacing

ARCHIVE = Path(__file__).parent / "results" / "runs.tar.xz"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m confirm.archive", description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path)
    given = parser.parse_args()
    with replacing(ARCHIVE) as name, tarfile.open(name, "w:xz") as archive:
        for path in sorted(given.runs.glob("*.jsonl.gz")):
            content = gzip.compress(gzip.decompress(path.read_bytes()), 0, mtime=0)
            about = tarfile.TarInfo(f"runs/{path.name}")
            about.size = len(content)
            archive.addfile(about, io.BytesIO(content))


if __name__ == "__main__":
    main()
