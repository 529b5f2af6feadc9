"""Pictures with the objects they show: what verdicts are fitted on, and models diagnosed with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from annotated_types import MaxLen
from typing_extensions import TypedDict

from seewhen.benchmarks.base import Options
from seewhen.benchmarks.chair import Chair
from seewhen.benchmarks.files import find_image
from seewhen.benchmarks.records import read_records
from seewhen.errors import InvalidInput
from seewhen.reading import check_form
from seewhen.runs.pictures import open_picture, scene_source

if TYPE_CHECKING:
    from PIL import Image

    from seewhen.backbones.prompts import Picture
    from seewhen.scenes import Scene
    from seewhen.verdicts.lexicon import Lexicon

Box = tuple[float, float, float, float]  # left, top, right, bottom as fractions of the picture

_SEED = 7  # of drawn scenes that no evaluation and no training uses
_HINT = 'One JSON object per line: {"image": "a.jpg", "objects": ["dog", "car"]}.'


@dataclass(frozen=True)
class Labelled:
    """A picture and every object of the lexicon that it shows."""

    name: str
    picture: Picture  # a file, the name of a drawn scene, or the picture itself
    objects: frozenset[str]
    boxes: Mapping[str, tuple[Box, ...]] = field(default_factory=dict)  # where they are, as far as that is known

    def open(self) -> Image.Image:
        """The picture."""
        from seewhen.backbones.pictures import open_image

        return open_picture(self.picture) if isinstance(self.picture, str) else open_image(self.picture)

    def named_by(self, lexicon: Lexicon) -> Labelled:
        """The objects by the lexicon's own names: a sofa is a couch."""

        def known(name: str) -> str:
            paired = lexicon.pairs.get(name, name)
            return lexicon.node.get(paired, paired)

        boxes = {known(name): where for name, where in self.boxes.items()}
        return replace(self, objects=frozenset(map(known, self.objects)), boxes=boxes)


def drawn(count: int) -> list[Labelled]:
    """Drawn scenes with stray objects, which invite inventions."""
    from seewhen.scenes import dataset

    return [labelled_scene(scene) for scene in dataset("shifted", count, seed=_SEED)]


def labelled_scene(scene: Scene) -> Labelled:
    """A drawn scene with its objects and where they are."""
    return Labelled(scene.image, scene_source(scene.image), frozenset(scene.names), scene.boxes)


def labelled(data: Path, image_list: str | None = None, limit: int | None = None) -> list[Labelled]:
    """A folder that `seewhen eval chair --data` takes, or JSON lines with image and objects."""
    found = _from_file(data) if data.is_file() else _from_folder(data, image_list, limit)
    if not found:
        raise InvalidInput(f"{data} names no picture.", _HINT)
    return found[:limit]


def _from_folder(folder: Path, image_list: str | None, limit: int | None) -> list[Labelled]:
    if not folder.is_dir():
        raise InvalidInput(f"There is no folder or file {folder}.", "Name COCO's folder, or JSON lines.")
    chair = Chair.open(folder, Options(image_list=image_list))
    return [
        Labelled(image, str(find_image(folder, image)), frozenset(chair.shown(image)))
        for image in chair.images[:limit]
    ]


class _Line(TypedDict):
    image: str
    objects: Annotated[list[str], MaxLen(10_000)]


def _from_file(path: Path) -> list[Labelled]:
    found = []
    for number, record in read_records(path):
        known = {name: record.get(name) for name in ("image", "objects")}
        check_form(_Line, known, f"{path}, line {number}", _HINT)
        objects = frozenset(" ".join(name.lower().split()) for name in record["objects"])
        found.append(Labelled(f"{number}: {record['image']}", str(path.parent / record["image"]), objects))
    return found


def check_enough(images: Sequence[Labelled]) -> None:
    """Refuse so few that nothing can be told from them, before minutes are spent on their captions."""
    from seewhen.verdicts.ceiling import FOLDS

    if len(images) < FOLDS:
        raise InvalidInput(
            f"A ceiling needs {FOLDS} images or more, and there are {len(images)}.", "Give more images."
        )


def given(images: int | str | Path | Sequence[tuple[Picture, Sequence[str]]]) -> list[Labelled]:
    """From what Python callers have: a number of drawn scenes, a folder or file, or pictures with objects."""
    if isinstance(images, int):
        return drawn(images)
    if isinstance(images, str | Path):
        return labelled(Path(images))
    return [Labelled(str(number), one, frozenset(objects)) for number, (one, objects) in enumerate(images)]
