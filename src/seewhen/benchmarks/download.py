"""Bringing a file here: resumed where it broke off, compared with its checksum, in place only when whole.

Nothing calls this but `seewhen data get`. The hub's own downloader is not used for the bytes because it starts
a large file again from zero after a crash; names, sizes, checksums and access come from `huggingface_hub`.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path
from urllib.parse import urlsplit

from seewhen.errors import InvalidInput, SeewhenError

_CHUNK = 1 << 20
_TRIES = 5  # in a row without a single new byte
_TIMEOUT = 30.0
_LARGEST = 64 << 30  # of a file whose size is not known
Tick = Callable[[int], None]


class DownloadFailed(SeewhenError):
    """A file could not be downloaded, or is not the one that was expected."""


@dataclass(frozen=True)
class RemoteFile:
    """A file elsewhere. `keep` is its place in the data folder; without it the file is unpacked and dropped."""

    url: str
    keep: str = ""
    size: int | None = None
    checksum: str = ""  # "sha256:..." or "md5:...", as its publisher gives it; empty where none is known
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)  # headers for this host alone

    @property
    def name(self) -> str:
        return urlsplit(self.url).path.rsplit("/", 1)[-1]

    def on(self, mirror: str) -> RemoteFile:
        """Its copy on a mirror: https://HOST/PATH is MIRROR/HOST/PATH there."""
        parts = urlsplit(self.url)
        return replace(self, url=f"{mirror.rstrip('/')}/{parts.netloc}{parts.path}")


@dataclass(frozen=True)
class HubFiles:
    """Files of a dataset on the hub, as it describes them."""

    files: tuple[RemoteFile, ...]
    revision: str
    licence: str


def refuse_offline() -> None:
    """Offline mode is about every host, not only about the hub."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        raise DownloadFailed("HF_HUB_OFFLINE is set, so nothing is downloaded.", "Unset it for this command.")


def hub_files(repository: str, pattern: str) -> HubFiles:
    """The files of a dataset that match, with size and checksum, at the revision it has now."""
    from huggingface_hub import HfApi, hf_hub_url
    from huggingface_hub.errors import GatedRepoError, HTTPError
    from huggingface_hub.utils import build_hf_headers

    try:
        info = HfApi().dataset_info(repository, files_metadata=True, timeout=_TIMEOUT)
    except GatedRepoError:
        page = f"https://huggingface.co/datasets/{repository}"
        raise DownloadFailed(
            f"The dataset {repository} is gated.", f"Accept its terms on {page}, then `hf auth login`."
        ) from None
    except (OSError, HTTPError) as error:
        reason = (
            str(error).strip().splitlines()[0][:200].rstrip(".") if str(error).strip() else type(error).__name__
        )
        raise DownloadFailed(
            f"The hub does not give the dataset {repository}: {reason}.",
            "Check the network, or set HF_ENDPOINT to a mirror of the hub.",
        ) from None
    headers = build_hf_headers()
    secrets = {"Authorization": headers["authorization"]} if "authorization" in headers else {}
    found = []
    for sibling in sorted(info.siblings or (), key=lambda sibling: sibling.rfilename):
        if fnmatch(sibling.rfilename, pattern):
            url = hf_hub_url(repository, sibling.rfilename, repo_type="dataset", revision=info.sha)
            checksum = f"sha256:{sibling.lfs.sha256}" if sibling.lfs else ""
            found.append(RemoteFile(url, size=sibling.size, checksum=checksum, secrets=secrets))
    if not found:
        raise DownloadFailed(
            f"The dataset {repository} has no file {pattern} any more.", "Take the files by hand, see the docs."
        )
    licence = getattr(info.card_data, "license", None) if info.card_data else None
    return HubFiles(tuple(found), str(info.sha), str(licence or "none stated on the hub"))


def fetch(remote: RemoteFile, target: Path, tick: Tick = lambda size: None) -> Path:
    """Bring the file to `target`. What an earlier attempt left is used if a checksum can tell that it fits."""
    if target.is_file() and (not remote.checksum or _digest(target, remote.checksum) == remote.checksum):
        tick(target.stat().st_size)
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    if not remote.checksum:
        part.unlink(missing_ok=True)
    have = part.stat().st_size if part.exists() else 0
    tick(have)
    failed = 0
    while True:
        before = have
        try:
            have = _stream(remote, part, have, tick)
        except urllib.error.HTTPError as error:
            if error.code == 416:  # the part is as long as the file, or longer: its checksum will tell
                break
            if error.code < 500 and error.code != 429:
                raise _failed(remote, f"HTTP {error.code} {error.reason}") from None
            problem = f"HTTP {error.code} {error.reason}"
        except (OSError, http.client.HTTPException) as error:
            problem = str(error) or type(error).__name__
            have = part.stat().st_size if part.exists() else 0
        else:
            break
        failed = 0 if have > before else failed + 1
        if failed >= _TRIES:
            raise _failed(remote, problem)
        time.sleep(min(0.2 * 2**failed, 5.0))
    _check(remote, part)
    os.replace(part, target)
    return target


def _stream(remote: RemoteFile, part: Path, have: int, tick: Tick) -> int:
    """Appends what comes to the part; returns how much there is."""
    request = urllib.request.Request(remote.url, headers={"User-Agent": "seewhen"})
    for name, value in remote.secrets.items():
        request.add_unredirected_header(name, value)  # a redirect leads to another host
    if have:
        request.add_header("Range", f"bytes={have}-")
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as response:
        if have and response.status != 206:  # the whole file comes again
            tick(-have)
            have = 0
        whole = _announced(remote, response.headers.get("Content-Length"), have)
        most = remote.size if remote.size is not None else _LARGEST
        if whole is not None and whole > most:
            raise _wrong(remote, f"{whole} bytes instead of {most}")
        # Unbuffered, and whatever has come is written at once: a process that is killed loses nothing.
        with part.open("ab" if have else "wb", buffering=0) as file:
            while chunk := response.read1(_CHUNK):
                file.write(chunk)
                have += len(chunk)
                tick(len(chunk))
                if have > most:
                    break
    if have > most:
        part.unlink()
        raise _wrong(remote, f"more than {most} bytes")
    if whole is not None and have < whole:
        raise ConnectionError(f"it broke off after {have} of {whole} bytes")
    return have


def _announced(remote: RemoteFile, length: str | None, have: int) -> int | None:
    """How large the whole file will be, as the server says."""
    if length is None:
        return None
    if not (length.isascii() and length.isdecimal() and len(length) < 19):
        raise _failed(remote, f"the server says that it has {length!r:.40} bytes")
    return have + int(length)


def _check(remote: RemoteFile, part: Path) -> None:
    size = part.stat().st_size
    wrong = ""
    if remote.size is not None and size != remote.size:
        wrong = f"{size} bytes instead of {remote.size}"
    elif remote.checksum and _digest(part, remote.checksum) != remote.checksum:
        wrong = f"its {remote.checksum.split(':')[0]} is not {remote.checksum.split(':')[1]}"
    if wrong:
        part.unlink()
        raise _wrong(remote, wrong)


def _wrong(remote: RemoteFile, why: str) -> DownloadFailed:
    return DownloadFailed(
        f"{remote.url} is not the published file: {why}.",
        "It was deleted. Try again; if that does not help, the publisher may have changed it.",
    )


def _digest(path: Path, checksum: str) -> str:
    kind = checksum.split(":")[0]
    with path.open("rb") as stream:
        return f"{kind}:{hashlib.file_digest(stream, kind).hexdigest()}"


def _failed(remote: RemoteFile, why: str) -> DownloadFailed:
    return DownloadFailed(
        f"{remote.url} cannot be downloaded: {why}.",
        "Run the command again to go on where it stopped, or get the file by hand.",
    )


def need_room(folder: Path, sizes: Sequence[int]) -> None:
    """Archive and content lie side by side for a moment."""
    import shutil

    above = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    free, needed = shutil.disk_usage(above).free, 2 * sum(sizes)
    if free < needed:
        raise InvalidInput(
            f"{folder} has {free / 1e9:.1f} GB left; this needs about {needed / 1e9:.1f} GB while it unpacks.",
            "Make room, or name another folder with --to.",
        )
