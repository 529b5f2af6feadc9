"""Every figure of the paper, and what it only shows by example, measured.

Each is a function from one answer (`Case`), many answers or a sweep to a `Drawing`: a matplotlib figure and
the numbers in it. `save` writes both.

    from seewhen.showing.figures import case_of, save, similarity
    answer = seewhen.generate(model, processor, "photo.jpg", "What is in the image?", trace=True)
    save(similarity(case_of(answer.trace, image)), "seen.pdf")

`seewhen figure NAME` does the same from the command line, `docs/gallery.md` shows them all. Needs the extra
`figures` (matplotlib).
"""

from seewhen.showing.figures.ablations import ablation_contrast, ablation_gate, read_sweep
from seewhen.showing.figures.captions import caption
from seewhen.showing.figures.cases import Case, case_of, scene_case
from seewhen.showing.figures.catalogue import FIGURES
from seewhen.showing.figures.entropies import entropy, median_entropy
from seewhen.showing.figures.failures import confident_hallucinations, failure
from seewhen.showing.figures.firing import fired
from seewhen.showing.figures.maps import similarity, source_layers
from seewhen.showing.figures.measured import auroc_by_layer, calibration, pointing
from seewhen.showing.figures.studies import case_study
from seewhen.showing.figures.style import Drawing, save

__all__ = [
    "FIGURES",
    "Case",
    "Drawing",
    "ablation_contrast",
    "ablation_gate",
    "auroc_by_layer",
    "calibration",
    "caption",
    "case_of",
    "case_study",
    "confident_hallucinations",
    "entropy",
    "failure",
    "fired",
    "median_entropy",
    "pointing",
    "read_sweep",
    "save",
    "scene_case",
    "similarity",
    "source_layers",
]
