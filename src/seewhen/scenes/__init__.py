"""Labelled scenes: pictures whose every object is known, with questions and captions about them.

Sampling, drawing and asking use numpy and Pillow only. The same arguments give the same bytes everywhere:

    from seewhen.scenes import dataset, render, pope
    scenes = dataset("shifted", 500)
    image = render(scenes[0])                    # a Pillow image, 192 x 192
    questions = pope(scenes, "adversarial")      # the benchmark's own record shape

The small model of the package was trained on them: benchmarks/embedded/README.md.
"""

from seewhen.scenes.questions import chair, mme, pope
from seewhen.scenes.rendering import render
from seewhen.scenes.scene import Scene, Thing, dataset, sample, scene_named, truth
from seewhen.scenes.world import CATEGORIES, HELD_OUT, SPLITS

__all__ = [
    "CATEGORIES",
    "HELD_OUT",
    "SPLITS",
    "Scene",
    "Thing",
    "chair",
    "dataset",
    "mme",
    "pope",
    "render",
    "sample",
    "scene_named",
    "truth",
]
