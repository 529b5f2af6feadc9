"""Processors of models that also take videos, where torchvision is missing: images only.

transformers 5.x reads videos with torchvision, and refuses to build a processor that has a video part
without it, although all image processors have a twin that needs only Pillow. Here the video part is left out.
"""

from __future__ import annotations

from typing import Any

from seewhen.errors import InvalidInput


class _NoVideos:
    """Stands in the place of the video part; some chat templates ask it for its settings."""

    num_frames = None
    fps = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise InvalidInput("Videos are read with torchvision, which is not installed.", "pip install torchvision")


def images_only_processor(path: str, **where: Any) -> Any:
    """The model's own processor without its video part; None where it has none to leave out."""
    from transformers import PROCESSOR_MAPPING, AutoConfig

    kind: Any = PROCESSOR_MAPPING[type(AutoConfig.from_pretrained(path, **where))]
    parts = kind.get_attributes()
    if "video_processor" not in parts:
        return None
    place = parts.index("video_processor")

    class ImagesOnly(kind):
        video_processor = _NoVideos()

        @classmethod
        def get_attributes(cls) -> list[str]:
            return [*parts[:place], *parts[place + 1 :]]

        @classmethod
        def _get_arguments_from_pretrained(cls, *args: Any, **kwargs: Any) -> list[Any]:
            loaded = super()._get_arguments_from_pretrained(*args, **kwargs)
            return [*loaded[:place], None, *loaded[place:]]  # some constructors insist on the argument

    ImagesOnly.__name__ = kind.__name__  # it is written into saved files
    return ImagesOnly.from_pretrained(path, **where)
