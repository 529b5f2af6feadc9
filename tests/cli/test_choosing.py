"""Method specifications and parameters as text."""

from __future__ import annotations

import pytest

from seewhen.cli.choosing import _fields, choose, choose_all, parse_value
from seewhen.errors import InvalidMethod
from seewhen.methods import method, method_class, method_names
from seewhen.runs.controls import Part


def _as_text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


@pytest.mark.parametrize("name", method_names())
def test_every_value_of_every_preset_survives_the_trip_through_text(name: str) -> None:
    kinds = _fields(name)
    for preset in method_class(name).presets.values():
        for field, value in preset.values.items():
            assert parse_value(kinds[field], _as_text(value), field) == value


def test_a_spec_names_preset_part_and_parameters() -> None:
    assert choose("cai").method == method("cai")
    assert choose("cai:paper").method == method("cai", "paper")
    assert choose("cai:reference:llava-1.5/coco/random").method == method("cai", "reference:llava-1.5/coco/random")
    assert choose("cai:paper:contrast=5:threshold=none").method == method(
        "cai", "paper", contrast=5.0, threshold=None
    )
    assert choose("cai:attention:contrast=3").method == Part("attention", method("cai", contrast=3.0))
    assert choose("cai+vcd").method == method("cai") + method("vcd")


def test_numbers_take_the_type_of_their_field() -> None:
    layer, share = choose("cai", ["start_layer=3"]).method, choose("cai", ["start-layer=0.5"]).method
    assert isinstance(layer.start_layer, int) and isinstance(share.start_layer, float)  # type: ignore[attr-defined]
    assert choose("cai", ["leak=true"]).method.leak is True  # type: ignore[attr-defined]


def test_a_shared_parameter_goes_where_it_belongs() -> None:
    chosen = choose_all(["regular", "cai:attention", "cai"], ["contrast=3"])
    assert [each.method for each in chosen] == [
        method("regular"),
        Part("attention", method("cai", contrast=3.0)),
        method("cai", contrast=3.0),
    ]
    # Its own value is not overruled.
    assert choose("cai:contrast=5", []).method == choose_all(["cai:contrast=5", "cai"], ["contrast=3"])[0].method


@pytest.mark.parametrize(
    ("specs", "parameters", "told"),
    [
        (["nonsense"], [], "no method 'nonsense'"),
        (["cai:nonsense"], [], "no preset 'nonsense'"),
        (["cai"], ["nonsense=1"], "no parameter 'nonsense'"),
        (["cai:nonsense=1"], [], "no parameter 'nonsense'"),
        (["cai", "regular"], ["nonsense=1"], "have no parameter"),
        (["cai"], ["contrast"], "not name=value"),
        (["cai"], ["tilt=sideways"], "takes score or exponential"),
        (["cai"], ["contrast=much"], "takes a number"),
        (["cai"], ["contrast=0"], "below 1"),
        (["cai", "cai"], [], "named twice"),
        ([], [], "No method"),
    ],
)
def test_what_is_wrong_is_named(specs: list[str], parameters: list[str], told: str) -> None:
    with pytest.raises(InvalidMethod, match=told):
        choose_all(specs, parameters)
