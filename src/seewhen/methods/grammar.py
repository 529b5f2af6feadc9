"""One way to name a method, in Python, in every command, in the server and in every label:

    cai                             the defaults
    cai:paper                       a preset
    cai:contrast=3,threshold=0.2    parameters; after a preset, cai:paper:contrast=5
    cai:attention                   one part alone, attention or contrast; cai:contrast=3:attention
    cai+vcd                         several methods as one
    vti:directions=vti.safetensors  a file, for methods that need one

A list of values stands in brackets, `dola:layers=[0,2]`, and text with one of `:+,="[]` in quotes as in JSON,
`icd:sentence="Look, think."`. In a list of methods, `regular,cai:contrast=3,threshold=0.2`, whatever begins
with `name=` belongs to the method before it. `method` reads what `label` writes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from seewhen.decoding.parameter_values import called
from seewhen.errors import InvalidInput, InvalidMethod
from seewhen.methods.known import METHODS, method_class, method_from_json, method_names
from seewhen.registry import no_parameter

if TYPE_CHECKING:
    from seewhen.decoding.method import Method, PartName

ALL = "all"
# The paper's symbols for CAI's parameters, where a method has none of that very name.
SYMBOLS = {"l_s": "start_layer", "gamma": "threshold", "lambda": "contrast"}
_PARTS = ("attention", "contrast")
# A file in place of a preset, `confirm:verdict.json`, is what the method reads from one.
_FILES = {
    "confirm": (".json", "verdict"),
    "vti": (".safetensors", "directions"),
    "ict": (".safetensors", "directions"),
}
_RULE = "Put a list in brackets, layers=[0,2], and text with special characters in double quotes."
# What no separator cuts: text in quotes, a list in brackets, the sign of an exponent.
_WHOLE = r'"(?:[^"\\]|\\.)*"|\[[^\[\]]*\]|(?<=\d)[eE]\+(?=\d)|(?<=\d\.)[eE]\+(?=\d)'


@dataclass(frozen=True)
class Term:
    """One method of a specification, as it is written."""

    name: str
    preset: str | None
    part: PartName | None
    settings: Mapping[str, str]


def split(text: str, at: str) -> list[str]:
    """`text` cut at the character `at`, except in quotes and brackets."""
    pieces = [""]
    for found in re.finditer(f"{_WHOLE}|.", text, re.DOTALL):
        if found[0] == at:
            pieces.append("")
        else:
            pieces[-1] += found[0]
    return [piece.strip() for piece in pieces]


def split_methods(text: str) -> list[str]:
    """The methods of a list with commas between them."""
    found: list[str] = []
    for piece in filter(None, split(text, ",")):
        if found and re.match(r"[\w-]+\s*=", piece):
            found[-1] += f",{piece}"
        else:
            found.append(piece)
    return found


def terms(spec: str) -> list[Term]:
    """The methods that `spec` combines. Their names exist; presets and parameters are not looked at yet."""
    found = [_term(text) for text in split(spec, "+")]
    if not all(term.name for term in found):
        raise InvalidMethod(
            f"{spec!r} has a place without a method's name.", "For example: cai, cai:paper, cai+vcd."
        )
    for term in found:
        METHODS.check(term.name)
    return found


def _term(text: str) -> Term:
    name, *pieces = split(text, ":")
    if not all(pieces):
        raise InvalidMethod(f"{text!r} has nothing after a colon.", "For example: cai:paper, cai:contrast=3.")
    settings: dict[str, str] = {}
    plain: list[str] = []
    for piece in pieces:
        pairs = split(piece, ",")
        if len(split(pairs[0], "=")) == 1:
            plain.append(piece)
        else:
            for parameter, value in map(pair, pairs):
                if parameter in settings:
                    raise InvalidMethod(f"{text} gives {parameter} twice.", "Give each parameter once.")
                settings[parameter] = value
    ending, parameter = _FILES.get(name.lower(), (None, ""))
    for piece in [piece for piece in plain if ending and piece.endswith(ending)]:
        plain.remove(piece)
        settings[parameter] = piece
    part = next((piece for piece in plain if piece in _PARTS), None)
    preset = ":".join(piece for piece in plain if piece != part) or None
    known = name if name in METHODS.names else name.lower()  # another package's may have capitals
    return Term(known, preset, part, settings)  # type: ignore[arg-type]


def pair(text: str) -> tuple[str, str]:
    """`name=value` taken apart."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise InvalidMethod(f"{text!r} is not name=value.", f"For example: contrast=3. {_RULE}")
    return name.strip().replace("-", "_"), value.strip()


def parse(spec: str, preset: str | None = None, parameters: Mapping[str, Any] | None = None) -> Method:
    """The method that `spec` names. `preset` is for a single method that names none; `parameters` overrule."""
    from seewhen.decoding.method import Combined

    found = terms(spec)
    if preset is not None and (len(found) > 1 or found[0].preset is not None):
        raise InvalidMethod(f"{spec} cannot take the preset {preset} too.", "Name the preset within it.")
    if len(found) == 1:
        return _make(found[0], preset, parameters or {})
    combined = Combined(tuple(_make(term, None, {}) for term in found))
    return combined.replace(**parameters) if parameters else combined


def _make(term: Term, preset: str | None, parameters: Mapping[str, Any]) -> Method:
    from seewhen.decoding.method import Part, make

    cls = method_class(term.name)
    values = dict(read_setting(cls, name, text) for name, text in term.settings.items())
    made = make(cls, term.preset or preset, **{**values, **parameters})
    return made if term.part is None else Part(term.part, made)


def check(specs: Iterable[str], settings: Iterable[str] = ()) -> None:
    """Refuse what cannot be used: `check_names`, and a single method that has no file of directions."""
    specs, settings = list(specs), list(settings)
    check_names(specs, settings)
    if len(specs) == 1 and specs != [ALL]:  # of several, one that cannot be used may be left out
        check_fitted(specs, settings)


def check_names(specs: Iterable[str], settings: Iterable[str] = ()) -> None:
    """Refuse what no method has, and settings that are not name=value, without importing a method.

    Names, presets, parameters and kinds of values are in the catalogue; ranges are for the methods themselves.
    """
    from seewhen.methods import catalogue

    named = [term for spec in specs for term in (map(_bare, METHODS.built_in) if spec == ALL else terms(spec))]
    for term in named:
        if term.preset is not None:
            catalogue.check_preset(term.name, term.preset)
        known = catalogue.parameters_of(term.name)
        if known is None:
            continue
        for name, text in term.settings.items():
            field = field_named(known, name)
            if field is None:
                raise no_parameter(term.name, [name], known)
            _check_value(term.name, field, text)
    for text in settings:
        _check_setting([term.name for term in named], *pair(text))


def check_fitted(specs: Iterable[str], settings: Iterable[str] = ()) -> None:
    """Refuse a method that needs a file of directions (`seewhen calibrate`) and has none, without importing it."""
    from seewhen.methods import catalogue

    everywhere = dict(pair(text) for text in settings)
    for term in (term for spec in specs for term in terms(spec)):
        known = catalogue.parameters_of(term.name)
        if known is None or "directions" not in known:
            continue
        file = term.settings.get("directions", everywhere.get("directions", ""))
        if not file:
            raise InvalidMethod(
                f"{term.name} needs directions fitted for this model.",
                f"Fit them with `seewhen calibrate {term.name} --out FILE`, then give directions=FILE.",
            )
        if not Path(file).is_file():
            raise InvalidInput(f"There is no file {file}.", f"Fit one with `seewhen calibrate {term.name}`.")


def _bare(name: str) -> Term:
    return Term(name, None, None, {})


def _check_setting(methods: Sequence[str], name: str, text: str) -> None:
    """A setting for all: some method has the parameter, and the value is of its kind."""
    from seewhen.methods.catalogue import parameters_of

    known = {method: parameters_of(method) for method in methods}
    fields = {method: field_named(each, name) for method, each in known.items() if each is not None}
    for method, field in fields.items():
        if field is not None:
            _check_value(method, field, text)
    if methods and not any(fields.values()) and None not in known.values():
        every = dict.fromkeys(field for each in known.values() for field in each or ())
        raise no_parameter(" and ".join(known), [name], every, len(known) > 1)


def _check_value(method: str, field: str, text: str) -> None:
    from seewhen.methods.catalogue import options_of

    options = options_of(method, field)
    if options:
        _read(options, text, field)


def choose(specs: Sequence[str], settings: Sequence[str] = ()) -> list[Method]:
    """The methods that `specs` name, `all` for the registry. A setting, `name=value`, goes to every method that
    has the parameter, at least to one."""
    check(specs, settings)
    if not specs:
        raise InvalidMethod("No method is named.", "For example: regular,cai")
    names = dict.fromkeys(name for spec in specs for name in (method_names() if spec == ALL else (spec,)))
    if len(names) < len(specs):
        raise InvalidMethod("A method is named twice.", "Name each method once.")
    found = [parse(name) for name in names]
    for text in settings:
        found = _with_setting(found, *pair(text))
    labels = [label(method) for method in found]
    double = next((each for each in labels if labels.count(each) > 1), None)
    if double is not None:
        raise InvalidMethod(f"{double} is named twice.", "Name each method once.")
    return found


def _with_setting(methods: Sequence[Method], name: str, text: str) -> list[Method]:
    from seewhen.decoding.method import parameter_kinds

    kinds = [parameter_kinds(method) for method in methods]
    if not any(field_named(each, name) for each in kinds):
        known = dict.fromkeys(field for each in kinds for field in each)
        raise no_parameter(" and ".join(map(label, methods)), [name], known, len(methods) > 1)
    return [
        method.replace(**dict([read_setting(method, name, text)])) if field_named(each, name) else method
        for method, each in zip(methods, kinds, strict=True)
    ]


def field_named(kinds: Mapping[str, Any], name: str) -> str | None:
    """The parameter called `name`, or by the paper's symbol for it."""
    return next((field for field in (name, SYMBOLS.get(name, name)) if field in kinds), None)


def read_setting(method: Method | type[Method], name: str, text: str) -> tuple[str, Any]:
    """A setting of `method` with the value that `text` stands for; a name it does not have passes through."""
    from seewhen.decoding.method import parameter_kinds

    kinds = parameter_kinds(method)
    field = field_named(kinds, name)
    return (name, text) if field is None else (field, parse_value(kinds[field], text, field))


def parse_value(kind: Any, text: str, name: str) -> Any:
    """`text` as a value of type `kind`: numbers, words, lists, true and false, none where it is allowed."""
    from seewhen.decoding.parameter_values import types_of

    return _read(types_of(kind), text, name)


def _read(kinds: Iterable[Any], text: str, name: str) -> Any:
    # Text takes anything, so it comes last; of the others no two read the same characters but int and float.
    options = sorted(kinds, key=lambda option: (option is str, option is float))
    for option in options:
        for value in _readings(option, text.strip()):
            return value
    wanted = " or ".join(called(option) for option in options)
    rule = f" {_RULE}" if any(option is str or get_origin(option) is tuple for option in options) else ""
    raise InvalidMethod(f"{name}={text} is not understood.", f"{name} takes {wanted}.{rule}")


def _readings(option: Any, text: str) -> list[Any]:
    """`text` read as one type: a list of one value, or of none."""
    lowered = text.lower()
    if option is type(None):
        return [None] if lowered in ("none", "null") else []
    if option is bool:
        return [lowered in ("true", "yes", "1")] if lowered in ("true", "yes", "1", "false", "no", "0") else []
    if get_origin(option) is Literal:
        return [word for word in _text_readings(text) if word in get_args(option)]
    if get_origin(option) is tuple:
        return _list_readings(get_args(option)[0], text)
    if option in (int, float):
        try:
            return [option(text)]
        except ValueError:
            return []
    return _text_readings(text) if option is str else []


def _list_readings(inner: Any, text: str) -> list[Any]:
    if not (text.startswith("[") and text.endswith("]")):
        return []
    pieces = [piece for piece in split(text[1:-1], ",") if piece]
    values = [value for piece in pieces for value in _readings(inner, piece)]
    return [tuple(values)] if len(values) == len(pieces) else []


def _text_readings(text: str) -> list[Any]:
    if not text.startswith(('"', "[")):
        return [text]
    try:
        value = json.loads(text)
    except ValueError:
        return []
    return [value] if isinstance(value, str) else []


def label(method: Method) -> str:
    """A short specification of a method: by a preset that it is, or that spares naming several parameters."""
    from seewhen.decoding.method import Combined, Part, make

    if isinstance(method, Combined):
        return "+".join(map(label, method.methods))
    if isinstance(method, Part):
        return f"{label(method.of)}:{method.part}"
    cls = type(method)
    # A method whose parameters have no defaults cannot be made without them.
    bare = {"": make(cls)} if not any(f.default is MISSING for f in fields(cls)) else {}
    bases = bare | {f":{name}": make(cls, name) for name in cls.presets}
    departures = {name: _departures(method, base) for name, base in bases.items()} or {"": method.parameters()}
    base = min(departures, key=lambda name: len(departures[name]) + (2 if name and departures[name] else 0))
    settings = ",".join(f"{name}={_written(cls, name, value)}" for name, value in departures[base].items())
    return f"{method.name}{base}" + (f":{settings}" if settings else "")


def label_of(description: Mapping[str, Any]) -> str:
    """The label of a method from its JSON; of one that is not installed, its name with all parameters."""
    try:
        return label(method_from_json(description))
    except InvalidMethod:
        given = description.get("parameters")  # anything, in a stranger's file
        known = given.items() if isinstance(given, Mapping) else ()
        settings = ",".join(f"{name}={as_text(value)}" for name, value in known)
        return f"{description.get('method')}:{settings}" if settings else str(description.get("method"))


def _departures(method: Method, base: Method) -> dict[str, Any]:
    usual = base.parameters()
    # 1 is a layer and 1.0 is a share of them all, so types count.
    return {
        name: value
        for name, value in method.parameters().items()
        if (value, type(value)) != (usual[name], type(usual[name]))
    }


def _written(cls: type[Method], name: str, value: Any) -> str:
    """The shortest text that reads back as `value`."""
    from seewhen.decoding.method import parameter_kinds

    if not isinstance(value, float):
        return as_text(value)
    kind = parameter_kinds(cls)[name]
    # What is written without a fraction is read as a whole number where that is allowed too.
    for text in (f"{value:g}", f"{value!r}"):
        read = parse_value(kind, text, name)
        if read == value and type(read) is float:
            break
    return text.replace("e+", "e")


def as_text(value: Any) -> str:
    """A value as it is written in a method's name."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{','.join(map(as_text, value))}]"
    if not isinstance(value, str):
        return repr(value).replace("e+", "e")
    plain = re.fullmatch(r'[^:+,="\[\]\s]([^:+,="\[\]\n]*[^:+,="\[\]\s])?', value)
    return value if plain and value.lower() not in ("none", "null") else json.dumps(value, ensure_ascii=False)
