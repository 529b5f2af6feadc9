"""MME's files: the release itself, one folder per subtask; it also lies on the hub (darkyarding/MME)."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from seewhen.benchmarks.files import Expected, State, under
from seewhen.benchmarks.mme.questions import QUESTIONS, SUBTASKS, load_folder
from seewhen.benchmarks.sources import SourcePart, hub_part, unzip
from seewhen.benchmarks.yesno import describe_questions

RELEASE = "MME_Benchmark_release_version"
_FOLDERS = ("", "mme/", "MME/", f"{RELEASE}/", "MME_Benchmark/", "Your_Results/")
_SOURCE = f"{RELEASE}, see github.com/BradyFU/Awesome-Multimodal-Large-Language-Models"

FILES = {task: Expected(f"mme/{task}", under(_FOLDERS, (task, f"{task}.txt")), _SOURCE) for task in SUBTASKS}


def look(expected: Expected, path: Path) -> tuple[State, str]:
    """No checksum is published; the number of questions is."""
    subtask = expected.key.split("/")[1]
    samples = load_folder(path.parent, (subtask,))
    note = describe_questions(samples)
    if len(samples) == QUESTIONS[subtask]:
        return "present", note
    return "differs", f"{note}; {QUESTIONS[subtask]} questions are published"


def downloads() -> list[SourcePart]:
    """The release as one archive."""
    return [
        hub_part(
            "the release: questions, pictures, 14 subtasks",
            "darkyarding/MME",
            f"{RELEASE}.zip",
            "MME: for research, ask its authors before passing it on",
            lambda archives, folder: unzip(archives, folder, _place),
        )
    ]


def _place(member: PurePosixPath) -> str | None:
    """A subtask's files, however deep the archive has them."""
    inside = next((member.parts[i:] for i, part in enumerate(member.parts) if part in SUBTASKS), ())
    good = member.suffix.lower() in (".txt", ".jpg", ".jpeg", ".png") and "__MACOSX" not in member.parts
    return "/".join((RELEASE, *inside)) if good and len(inside) > 1 else None
