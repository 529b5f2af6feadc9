"""Patch grids: which image tokens lie where in which image, for overlays.

What a family does with its pictures is read from facts that travel with every call: the configuration
(sizes, how patches are merged), the processor's outputs (`image_grid_thw`, `image_sizes`, the tiles in
`pixel_values`) and the image tokens of the prompt. A reading is accepted only if its tokens add up to
those of the prompt; where none does, a run of a square number of tokens is taken as a square image.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from seewhen.backbones.backbone import Backbone


@dataclass(frozen=True)
class ImageGrid:
    """A block of a row's image tokens that forms a grid over (a part of) one image.

    `start` counts the row's image tokens, `height` x `width` patches follow in reading order, `stride`
    tokens from one grid row to the next (more than `width` where a row ends with a separator token).
    `box` is the part of the image it covers as fractions (left, top, right, bottom); `kind` says what
    it is: a whole image, a frame of a video, a tile of an image, a thumbnail (the whole image again,
    beside its tiles), or tokens without a place ("queries").
    """

    image: int
    start: int
    height: int
    width: int
    stride: int
    box: tuple[float, float, float, float] = (0.0, 0.0, 1.0, 1.0)
    kind: str = "image"

    @property
    def tokens(self) -> int:
        """How many tokens the block has, separators included."""
        return self.height * self.stride

    def map_of(self, weights: Tensor) -> Tensor:
        """The (height, width) map of per-token weights (tokens,)."""
        index = torch.arange(self.height)[:, None] * self.stride + torch.arange(self.width)[None]
        return weights[self.start + index]

    def centre(self, row: int, column: int) -> tuple[float, float]:
        """The middle of a patch, as fractions of the picture."""
        left, top, right, bottom = self.box
        across, down = (column + 0.5) / self.width, (row + 0.5) / self.height
        return left + across * (right - left), top + down * (bottom - top)


def placed_grids(grids: Sequence[ImageGrid]) -> tuple[ImageGrid, ...]:
    """Those of the first picture whose tokens have a place: its tiles, or the whole of it."""
    own = [grid for grid in grids if grid.image == 0 and grid.kind != "queries"]
    return tuple(grid for grid in own if grid.kind != "thumbnail") or tuple(own)


def image_grids(backbone: Backbone, inputs: dict[str, Any], rows: int) -> tuple[tuple[ImageGrid, ...], ...]:
    """The grids of each row, as far as they can be told from the inputs of `generate`."""
    ids = inputs.get("input_ids")
    if not isinstance(ids, Tensor):
        return ((),) * rows
    prompt = _Prompt(backbone.model.config, inputs, ids.cpu(), backbone.image_mask(ids).cpu())
    for reading in (_merged_patches, _any_resolution, _given_sizes, _tiles, _squares):
        found = reading(prompt)
        if found is not None and [sum(grid.tokens for grid in row) for row in found] == prompt.counts:
            break
    placed = [_placed(row) for row in found or []]
    return tuple(row for row in placed for _ in range(rows // ids.shape[0]))


def _placed(row: list[ImageGrid]) -> tuple[ImageGrid, ...]:
    starts = [sum(grid.tokens for grid in row[:index]) for index in range(len(row))]
    return tuple(replace(grid, start=start) for grid, start in zip(row, starts, strict=True))


_Rows = list[list[ImageGrid]]  # grids of each row, in the order of their tokens; starts are filled in later


@dataclass(frozen=True)
class _Prompt:
    config: Any
    inputs: dict[str, Any]
    ids: Tensor
    mask: Tensor

    @property
    def counts(self) -> list[int]:
        """Image tokens of each row."""
        return [int(count) for count in self.mask.sum(dim=1)]

    @property
    def vision(self) -> Any:
        return getattr(self.config, "vision_config", None)

    @property
    def side(self) -> int:
        """Patches of the vision tower along each side of its square input; 0 where that is not known."""
        size, patch = (_first(getattr(self.vision, name, 0)) for name in ("image_size", "patch_size"))
        return size // patch if patch else 0

    def runs(self, row: int) -> list[tuple[int, int]]:
        """Where each unbroken run of image tokens of a row begins, and its length."""
        runs: list[tuple[int, int]] = []
        for position in self.mask[row].nonzero().flatten().tolist():
            if runs and position == sum(runs[-1]):
                runs[-1] = (runs[-1][0], runs[-1][1] + 1)
            else:
                runs.append((position, 1))
        return runs

    def per_image(self, pictures: Iterator[list[ImageGrid]]) -> _Rows | None:
        """Give each row as many of the pictures, which come in order, as its tokens ask for."""
        rows: _Rows = []
        for count in self.counts:
            rows.append([])
            image = 0
            while sum(grid.tokens for grid in rows[-1]) < count:
                picture = next(pictures, None)
                if picture is None:
                    return None
                rows[-1] += [replace(grid, image=image) for grid in picture]
                image += 1
        return rows


def _first(value: Any) -> int:
    return int(value[0] if isinstance(value, (list, tuple)) else value)


def _grid(height: int, width: int, stride: int = 0, kind: str = "image", **fields: Any) -> ImageGrid:
    return ImageGrid(fields.pop("image", 0), 0, height, width, stride or width, kind=kind, **fields)


def _queries(tokens: int, image: int = 0) -> ImageGrid:
    return _grid(1, tokens, kind="queries", image=image)


def _merged_patches(prompt: _Prompt) -> _Rows | None:
    """Qwen and its like: the processor tells frames, rows and columns of patches; m x m of them merge."""
    merge = getattr(prompt.vision, "spatial_merge_size", None)
    video = getattr(prompt.config, "video_token_id", None)
    shapes = {}
    for name in ("image_grid_thw", "video_grid_thw"):
        given = prompt.inputs.get(name)
        shapes[name] = iter(given.tolist() if isinstance(given, Tensor) else ())
    if merge is None or not any(name in prompt.inputs for name in shapes):
        return None
    rows: _Rows = []
    for tokens in (prompt.ids[row][prompt.mask[row]].tolist() for row in range(len(prompt.ids))):
        rows.append([])
        done = image = 0
        while done < len(tokens):
            moving = tokens[done] == video
            shape = next(shapes["video_grid_thw" if moving else "image_grid_thw"], None)
            if shape is None:
                return None
            frames, height, width = shape[0], shape[1] // merge, shape[2] // merge
            rows[-1] += [_grid(height, width, kind="frame" if moving else "image", image=image)] * frames
            done, image = done + frames * height * width, image + 1
    return rows


def _any_resolution(prompt: _Prompt) -> _Rows | None:
    """LLaVA-Next and OneVision: a thumbnail, then the unpadded high-resolution grid, a newline after each row."""
    pinpoints, sizes = getattr(prompt.config, "image_grid_pinpoints", None), prompt.inputs.get("image_sizes")
    if not pinpoints or sizes is None:
        return None
    alone = prompt.inputs.get("batch_num_images")
    several = [int(n) > 1 for n in alone for _ in range(int(n))] if alone is not None else [False] * len(sizes)

    def pictures() -> Iterator[list[ImageGrid]]:
        for size, whole_only in zip(torch.as_tensor(sizes).tolist(), several, strict=True):
            if whole_only:  # one of several images of its prompt is not cut into tiles; one newline ends it
                yield [_grid(prompt.side, prompt.side), _queries(1)]
            else:
                height, width = _high_resolution(prompt, size)
                yield [_grid(prompt.side, prompt.side, kind="thumbnail"), _grid(height, width, width + 1)]

    return prompt.per_image(pictures())


def _high_resolution(prompt: _Prompt, size: list[int]) -> tuple[int, int]:
    """Rows and columns of the high-resolution grid of an image of `size` (height, width)."""
    from transformers.image_processing_utils import select_best_resolution

    patch = _first(prompt.vision.image_size) // prompt.side
    canvas = select_best_resolution(tuple(size), prompt.config.image_grid_pinpoints)
    height, width = canvas[0] // patch, canvas[1] // patch
    if size[1] / size[0] > width / height:  # the image fills the width; padding above and below is cut off
        height -= 2 * ((height - int(round(size[0] * width / size[1], 7))) // 2)
    else:
        width -= 2 * ((width - int(round(size[1] * height / size[0], 7))) // 2)
    limit = str(getattr(prompt.config, "vision_aspect_ratio", "")).rpartition("_")[2]
    ratio = math.sqrt(height * width / (int(limit) * prompt.side**2)) if limit.isdigit() else 1.0
    return (int(height // ratio), int(width // ratio)) if ratio > 1.1 else (height, width)


def _given_sizes(prompt: _Prompt) -> _Rows | None:
    """Mistral 3 and Pixtral: pixels of each image; tokens that break rows are not image tokens."""
    sizes, patch = prompt.inputs.get("image_sizes"), _first(getattr(prompt.vision, "patch_size", 0))
    if sizes is None or not patch:
        return None
    merge = getattr(prompt.config, "spatial_merge_size", 1)
    shapes = (torch.as_tensor(sizes) // patch // merge).tolist()
    return prompt.per_image([_grid(height, width)] for height, width in shapes)


def _tiles(prompt: _Prompt) -> _Rows | None:
    """InternVL, Idefics 3 and SmolVLM: tiles in reading order, then a thumbnail; or one whole image."""
    shrink = getattr(prompt.config, "scale_factor", None)
    marked = shrink is not None  # each tile has a tag before it; else the tiles of an image are one run
    if not marked and getattr(prompt.config, "downsample_ratio", None):
        shrink = round(1 / prompt.config.downsample_ratio)
    if not shrink or not prompt.side:
        return None
    rows: _Rows = []
    side, used = prompt.side // shrink, 0
    pixels: Any = prompt.inputs.get("pixel_values")
    by_row = isinstance(pixels, Tensor) and pixels.dim() == 5  # else the tiles of all rows in one list
    for row in range(len(prompt.ids)):
        rows.append([])
        given, used = (pixels[row], 0) if by_row else (pixels, used)
        for image, tiles in enumerate(_tiles_per_image(prompt, row, side**2, marked)):
            own = None if given is None else given[used : used + tiles]
            rows[-1] += [replace(grid, image=image) for grid in _arranged(tiles, side, own)]
            used += tiles
    return rows


def _tiles_per_image(prompt: _Prompt, row: int, tokens: int, marked: bool) -> list[int]:
    runs = prompt.runs(row)
    if not marked:
        return [length // tokens for _, length in runs]
    # Every image ends with a whole view of it, and the last run of the prompt is one: its tag tells the others.
    tags = [prompt.ids[row, max(start - 2, 0) : start].tolist() for start, _ in runs]
    counts = [0]
    for tag in tags:
        counts[-1] += 1
        if tag == tags[-1]:
            counts.append(0)
    return counts[:-1]


def _arranged(tiles: int, side: int, pixels: Tensor | None) -> list[ImageGrid]:
    """The grids of an image of so many tiles, the last of them a thumbnail if there are several.

    How they are laid out is not among the inputs, but the pixels are: put together the right way, the
    tiles look like the thumbnail.
    """
    if tiles == 1:
        return [_grid(side, side)]
    if pixels is None or len(pixels) != tiles:
        return [_queries(tiles * side**2)]
    parts, thumbnail = pixels[:-1].float().cpu(), pixels[-1].float().cpu()

    def difference(down: int) -> float:
        mosaic = parts.unflatten(0, (down, -1)).permute(2, 0, 3, 1, 4).flatten(3, 4).flatten(1, 2)
        small = torch.nn.functional.interpolate(mosaic[None], thumbnail.shape[1:], mode="area")[0]
        return float((small - thumbnail).square().mean())

    down = min((n for n in range(1, tiles) if (tiles - 1) % n == 0), key=difference)
    across = (tiles - 1) // down
    grids = []
    for index in range(tiles - 1):
        top, left = index // across / down, index % across / across
        box = (left, top, left + 1 / across, top + 1 / down)
        grids.append(_grid(side, side, kind="tile", box=box))
    return [*grids, _grid(side, side, kind="thumbnail")]


def _squares(prompt: _Prompt) -> _Rows:
    """LLaVA, PaliGemma, Gemma 3: square images of a fixed size; InstructBLIP: queries without a place."""
    size = getattr(prompt.config, "mm_tokens_per_image", None) or prompt.side**2
    queries = getattr(prompt.config, "num_query_tokens", None)
    moving = "pixel_values_videos" in prompt.inputs  # OneVision's frames, one after the other, and a newline
    rows: _Rows = []
    for row in range(len(prompt.ids)):
        blocks: list[int] = []
        for _, length in prompt.runs(row):
            unit = queries or (0 if moving else size)  # images may follow one another without a word between them
            blocks += [unit] * (length // unit) if unit and length % unit == 0 else [length]
        rows.append([])
        for image, tokens in enumerate(blocks):
            side = 0 if queries or moving else math.isqrt(tokens)
            square = side * side == tokens
            rows[-1].append(_grid(side, side, image=image) if square else _queries(tokens, image))
    return rows
