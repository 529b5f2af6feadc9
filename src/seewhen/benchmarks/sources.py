"""Where the files of a benchmark come from, and how what comes is laid out as `seewhen data check` expects it."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from seewhen.atomic import write
from seewhen.benchmarks.download import DownloadFailed, RemoteFile, hub_files

COCO = "https://s3.amazonaws.com/images.cocodataset.org"
COCO_TERMS = "COCO: annotations CC BY 4.0, pictures by their Flickr licences"
PICTURE_SIZE = 165_000  # bytes of a COCO picture, about
_LARGEST = 8 << 30  # of what an archive may unpack to


@dataclass(frozen=True)
class SourcePart:
    """Files from one place. Those with a place in the folder are kept, the others handed to `unpack`."""

    what: str
    origin: str
    licence: str
    size: int  # of the download; what it is about where nobody says
    files: Callable[[Path], Sequence[RemoteFile]]  # asked when its turn comes: some depend on what came before
    unpack: Callable[[Sequence[Path], Path], None] | None = None
    revision: str = ""

    def mirrored(self, mirror: str | None) -> SourcePart:
        """From a mirror of what is not on the hub; a mirror of the hub is named by HF_ENDPOINT."""
        if self.revision or mirror is None:
            return self
        return replace(self, files=lambda folder: [file.on(mirror) for file in self.files(folder)])


def hub_part(
    what: str,
    repository: str,
    pattern: str,
    licence: str,
    unpack: Callable[[Sequence[Path], Path], None],
) -> SourcePart:
    """Files of a dataset on the hub, which is asked for them now."""
    found = hub_files(repository, pattern)
    return SourcePart(
        what,
        f"hub dataset {repository}",
        f"{licence}; the hub: {found.licence}",
        sum(file.size or 0 for file in found.files),
        lambda folder: found.files,
        unpack,
        found.revision,
    )


def plain_name(name: str) -> str:
    """A file's name and nothing else, whatever a data set says."""
    if not re.fullmatch(r"[\w.-]+", name) or name.startswith("."):
        raise ValueError(f"{name!r} is not the name of a picture")
    return name


def coco_pictures(names: Iterable[str]) -> list[RemoteFile]:
    """Pictures of COCO's val2014, one by one."""
    return [RemoteFile(f"{COCO}/val2014/{plain_name(name)}", f"val2014/{plain_name(name)}") for name in names]


def unzip(archives: Sequence[Path], folder: Path, place: Callable[[PurePosixPath], str | None]) -> None:
    """Members go where `place` says, never where the archive says."""
    for archive in archives:
        try:
            with zipfile.ZipFile(archive) as opened:
                members = [info for info in opened.infolist() if not info.is_dir()]
                chosen = [(info, place(PurePosixPath(info.filename))) for info in members]
                kept = [(info, target) for info, target in chosen if target and ".." not in target.split("/")]
                if sum(info.file_size for info, _ in kept) > _LARGEST:
                    raise DownloadFailed(f"{archive.name} would unpack to over 8 GiB.", "That cannot be right.")
                for info, target in kept:
                    write(folder / target, opened.read(info))
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
            raise DownloadFailed(f"{archive.name} cannot be unpacked: {error}.", "Try once more.") from None
        if not kept:
            raise DownloadFailed(f"{archive.name} holds nothing of this benchmark.", "Unpack it by hand and look.")
