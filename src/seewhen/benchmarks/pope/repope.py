"""RePOPE: POPE's COCO questions with labels corrected by hand (Neuhaus and Hein, arXiv 2504.15707).

Its files carry no licence, so they are fetched (`seewhen data get pope`) and never shipped. One in twenty labels
is turned round and one question in eleven dropped as ambiguous; fewer are yes, hence F1 and MCC beside accuracy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from seewhen.benchmarks.chair.coco import image_key
from seewhen.benchmarks.pope.questions import KINDS, load_questions
from seewhen.errors import InvalidInput

FILES = tuple(f"coco_repope_{kind}.json" for kind in KINDS)
_PLACES = (".", "repope", "RePOPE/annotations", "annotations", "../repope")

Labels = Mapping[tuple[str, str], str]  # image, question -> yes or no; questions that were dropped are not in it


def labels_in(folder: Path) -> Labels:
    """All corrected labels below a folder of POPE's files, or beside it; none where they were not fetched."""
    paths = [[folder / place / name for place in _PLACES] for name in FILES]
    found = [path for path in (next(filter(Path.is_file, places), None) for places in paths) if path]
    questions = [question for path in found for question in load_questions(path)]
    return {(image_key(q.image), q.question): str(q.truth) for q in questions}


def labels_named(name: str, question_files: Sequence[Path]) -> Labels:
    """What `--labels` names: `pope` (no correction), `repope` (beside the question files), or a folder."""
    if name == "pope":
        return {}
    folders = list(dict.fromkeys(path.parent for path in question_files)) if name == "repope" else [Path(name)]
    found = {key: label for folder in folders for key, label in labels_in(folder).items()}
    if not found:
        raise InvalidInput(
            f"{FILES[0]} is not in {folders[0]} nor in repope/ there.",
            f"`seewhen data get pope --to {folders[0]}` downloads it, or name its folder: --labels FOLDER.",
        )
    return found
