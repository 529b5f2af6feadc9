"""`seewhen check`: does a model stand by the objects that a text names?"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seewhen.cli.options import AUTO, AnyModelFlags, ModelFlags, check_writable
from seewhen.cli.starting import starting
from seewhen.errors import InvalidInput

if TYPE_CHECKING:
    from PIL import Image

    from seewhen.asking.check import Checked
    from seewhen.served.remote import Remote


@dataclass(frozen=True)
class JudgingFlags:
    """Which words are asked about, and what counts as confirmed; as the method `confirm` has them."""

    lexicon: Annotated[
        str, typer.Option("--lexicon", help="Which words are objects: open, coco, or a file, one object per line.")
    ] = "open"
    verdict: Annotated[
        str,
        typer.Option(
            "--verdict", help="auto (fitted, for the packaged models), asking (alone), or a file of `calibrate`."
        ),
    ] = "auto"
    threshold: Annotated[
        float | None, typer.Option("--threshold", help="Log-odds from which an object is confirmed.")
    ] = None


def check(
    image: Annotated[Path | None, typer.Argument(help="The picture.", show_default=False)] = None,
    text: Annotated[str | None, typer.Argument(help="A text about it, in quotes.", show_default=False)] = None,
    *,
    answers: Annotated[
        Path | None, typer.Option("--answers", help="Instead: JSON lines with image and text (or caption).")
    ] = None,
    images: Annotated[
        Path | None, typer.Option("--images", help="Folder of their pictures; that of the file unless given.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="JSON lines with verdicts; goes on where the file ends.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdicts as JSON.")] = False,
    html: Annotated[Path | None, typer.Option("--html", help="Write one self-contained page.")] = None,
    fail_on_denied: Annotated[
        bool, typer.Option("--fail-on-denied", help="Exit with code 1 if an object is denied.")
    ] = False,
    judging: JudgingFlags,
    model: AnyModelFlags,
) -> None:
    """Ask a model about every object that a text names, whoever wrote it.

    seewhen check photo.jpg "A dog sits beside a vase." --model photo

    seewhen check photo.jpg "A dog sits beside a vase." --html checked.html --fail-on-denied

    seewhen check --answers captions.jsonl --images val2014 --out checked.jsonl
    """
    for file in (out, html):
        check_writable(file)
    if answers is None and image is not None and text is not None and out is images is None:
        denied = _one(image, text, judging, model, as_json, html)
    elif answers is not None and image is None and not as_json and html is None:
        denied = _file(answers, images or answers.parent, out, judging, model)
    else:
        raise InvalidInput(
            "Give a picture and a text (with --json, --html), or --answers FILE (with --images, --out).",
            'For example: seewhen check photo.jpg "A dog beside a vase."',
        )
    if fail_on_denied and denied:
        raise typer.Exit(1)


def _one(
    path: Path, text: str, judging: JudgingFlags, flags: AnyModelFlags, as_json: bool, html: Path | None
) -> bool:
    from seewhen.asking.default_model import warn_about_photograph
    from seewhen.cli.answer import checked_picture
    from seewhen.cli.output import print_json
    from seewhen.verdicts.lexicon import lexicon_named
    from seewhen.verdicts.reader import check_text

    if not text.strip():
        raise InvalidInput("The text is empty.", "Give one that names something.")
    picture, known = checked_picture(path, flags)
    check_text(text, lexicon_named(judging.lexicon))
    if known.server is None:
        warn_about_photograph(known.model, picture)
    checked = _checker(judging, known, known.remote())(picture, text)
    if as_json:
        server = {} if known.server is None else {"server": known.server}
        facts = {"image": str(path), **checked.to_json(), "by": {**_by(judging, known), **server}}
        print_json(facts)
    else:
        _print(checked)
    if html is not None:
        _write_page(html, checked, picture, path.name, known)
    return bool(checked.denied)


def _file(answers: Path, folder: Path, out: Path | None, judging: JudgingFlags, flags: AnyModelFlags) -> bool:
    from seewhen.backbones.loading import check_name
    from seewhen.cli.output import print_json
    from seewhen.runs.checked_answers import check_all, check_into, read_answered

    if out is not None and out.exists() and out.samefile(answers):
        raise InvalidInput(f"{out} is the file of the answers.", "Name another file for --out.")
    listed = read_answered(answers)
    if not folder.is_dir():
        raise InvalidInput(f"There is no folder {folder}.", "Give the folder of the pictures as --images.")
    if served := flags.remote():
        served.asking()  # a server that cannot be asked is told once, not for every answer
        flags = dataclasses.replace(flags, model=served.model)
    else:
        if flags.model == AUTO:
            flags = dataclasses.replace(flags, model=_model_for([folder / each.image for each in listed]))
        check_name(flags.model, flags.revision)
    checker = _checker(judging, flags, served)

    def judge(path: Path, text: str) -> Mapping[str, Any]:
        return checker(path, text).to_json()

    if out is not None:
        lines = check_into(out, listed, folder, judge, _by(judging, flags))
    else:
        lines = []
        for line in check_all(listed, folder, judge, _by(judging, flags)):
            print_json(line, indent=None)
            lines.append(line)
    failed = [line["error"] for line in lines if "error" in line]
    denied = sum(bool(line.get("denied")) for line in lines)
    told = f"{len(lines)} answers checked, {denied} with denied objects"
    if failed:
        told += f", {len(failed)} could not be checked, the first because: {failed[0]}"
    sys.stderr.write(f"{told}\n")
    return bool(denied)


def _model_for(paths: Sequence[Path]) -> str:
    """By the first picture that can be read; what cannot is told line by line."""
    from seewhen.asking.default_model import model_for
    from seewhen.backbones.pictures import open_image

    for path in paths:
        try:
            return model_for(open_image(path))
        except InvalidInput:
            continue
    raise InvalidInput("None of the pictures can be read.", "Give their folder as --images.")


def _checker(judging: JudgingFlags, flags: AnyModelFlags, served: Remote | None) -> Callable[[Any, str], Checked]:
    from seewhen.verdicts.lexicon import lexicon_named

    lexicon_named(judging.lexicon)  # what is wrong with it is told before a model is loaded
    if served is not None:
        return functools.partial(served.check, **dataclasses.asdict(judging))

    with starting():
        from seewhen.asking.asker import Asker
        from seewhen.asking.check import Checker
        from seewhen.asking.opening import open_model

        return Checker(Asker(open_model(flags.model, flags.loading())), **dataclasses.asdict(judging)).check


def _by(judging: JudgingFlags, flags: AnyModelFlags) -> dict[str, Any]:
    """Not the address of a server: another one with the same model goes on with the same file."""
    extras = flags.extras()
    where = {} if flags.server is None else {"served": True, **({"request": extras} if extras else {})}
    return {"model": flags.model, **where, **dataclasses.asdict(judging)}


def _print(checked: Checked) -> None:
    """The objects, the least probable first, and on a terminal the text with denied ones struck."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    if console.is_terminal:
        shown = Text(checked.text)
        for each in checked.mentions:
            style = {"denied": "strike red", "confirmed": "green"}.get(each.verdict, "")
            shown.stylize(style, each.start, each.end)
        console.print(shown)
    once = {each.object: each for each in checked.mentions}
    if not once:
        console.print("The text names no object.")
    for each in sorted(once.values(), key=lambda each: 2.0 if each.probability is None else each.probability):
        line = f"{each.verdict:<9}  {each.object}"
        if each.odds is not None:
            line += f"  {each.probability:.0%} likely there; asked, log-odds {each.odds:+.2f}"
        console.print(line, markup=False)
    for note in checked.notes:
        sys.stderr.write(f"note: {note}\n")


def _write_page(path: Path, checked: Checked, picture: Image.Image, name: str, flags: ModelFlags) -> None:
    from seewhen.asking.default_model import in_words
    from seewhen.showing.viewer.checked import write_checked

    about = f"{name}: {in_words(flags.model)} was asked about every object, yes or no."
    write_checked(path, checked.to_json(), picture, name, about)
    sys.stderr.write(f"page: {path}\n")
