"""One way to name a method: what a label says, `method` reads, for every method, preset and parameter."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seewhen.decoding.method import Combined, Method, Part, make, parameter_kinds, part_of
from seewhen.decoding.parameter_values import types_of
from seewhen.errors import InvalidMethod
from seewhen.methods import method, method_class, method_from_json, method_names
from seewhen.methods.grammar import choose, label, label_of, split_methods


def _values(kind: Any) -> st.SearchStrategy[Any]:
    return st.one_of(*map(_value, types_of(kind)))


def _value(option: Any) -> st.SearchStrategy[Any]:
    if get_origin(option) is Literal:
        return st.sampled_from(get_args(option))
    if get_origin(option) is tuple:
        return st.lists(_value(get_args(option)[0]), max_size=3).map(tuple)
    if option is float:
        return st.floats(allow_nan=False) | st.floats(0, 1) | st.integers(1, 40).map(float)
    if option is int:
        return st.integers(-3, 2**62)
    return {bool: st.booleans(), str: st.text(max_size=12), type(None): st.none()}[option]


@st.composite
def single_methods(draw: st.DrawFn) -> Method:
    cls = method_class(draw(st.sampled_from(method_names())))
    made = make(cls, draw(st.sampled_from([None, *cls.presets])))
    kinds = parameter_kinds(cls)
    for name in draw(st.lists(st.sampled_from(sorted(kinds)), unique=True, max_size=3)) if kinds else ():
        try:
            made = made.replace(**{name: draw(_values(kinds[name]))})
        except InvalidMethod:
            continue  # out of its range
    return made


@st.composite
def any_methods(draw: st.DrawFn) -> Method:
    found = draw(st.lists(single_methods(), min_size=1, max_size=3))
    found = [
        part_of(each, draw(st.sampled_from(["attention", "contrast"]))) if draw(st.booleans()) else each
        for each in found
    ]
    if len(found) == 1 or any(each.beams_only for each in found):
        return found[0]
    return Combined(tuple(found))


@given(any_methods())
@settings(max_examples=150, deadline=None)
def test_a_label_names_the_method_itself(made: Method) -> None:
    again = method(label(made))
    assert again == made and again.fingerprint == made.fingerprint
    assert label(again) == label(made)
    assert split_methods(f"regular,{label(made)},cai") == ["regular", label(made), "cai"]
    through_json = method_from_json(json.loads(json.dumps(made.to_json())))
    assert through_json == made and label(through_json) == label(made)


@pytest.mark.parametrize("name", method_names())
def test_labels_of_presets_are_short(name: str) -> None:
    assert label(method(name)) == name
    for preset in method_class(name).presets:
        assert "=" not in label(method(name, preset))
    assert label(method("cai:paper:contrast=5")) == "cai:paper:contrast=5"
    assert label(method("vcd", alpha=0.5, noise_step=400)) == "vcd:alpha=0.5,noise_step=400"


@pytest.mark.parametrize(
    ("spec", "made"),
    [
        ("cai", lambda: method("cai")),
        ("CAI", lambda: method("cai")),
        ("cai:paper", lambda: method("cai", "paper")),
        ("cai:reference:llava-1.5/coco/random", lambda: method("cai", "reference:llava-1.5/coco/random")),
        ("cai:contrast=3,threshold=0.2", lambda: method("cai", contrast=3.0, threshold=0.2)),
        ("cai:lambda=3:gamma=0.2", lambda: method("cai", contrast=3.0, threshold=0.2)),
        ("pai:gamma=1.5", lambda: method("pai", gamma=1.5)),
        ("cai:paper:contrast=5,threshold=none", lambda: method("cai", "paper", contrast=5.0, threshold=None)),
        ("cai:scale=1e+3 + vcd", lambda: method("cai", scale=1000.0) + method("vcd")),
        ("cai:attention:contrast=3", lambda: Part("attention", method("cai", contrast=3.0))),
        ("cai+vcd+dola", lambda: method("cai") + (method("vcd") + method("dola"))),
        ("dola:layers=[0, 2]", lambda: method("dola", layers=(0, 2))),
        ('icd:sentence="No, look: 1+1=[2]"', lambda: method("icd", sentence="No, look: 1+1=[2]")),
        ("vti:directions=some dir/vti.safetensors", lambda: method("vti", directions="some dir/vti.safetensors")),
    ],
)
def test_what_a_specification_means(spec: str, made: Any) -> None:
    assert method(spec) == made()


def test_a_part_of_a_combination_is_that_part_of_each() -> None:
    both = method("cai:contrast=3+vcd")
    assert label(part_of(both, "attention")) == "cai:contrast=3:attention+vcd:attention"


def test_a_list_of_methods_is_cut_between_methods_only() -> None:
    text = 'regular, cai:contrast=3,threshold=0.2 ,dola:layers=[0,2],icd:sentence="a,b",cai+vcd'
    assert split_methods(text) == [
        "regular",
        "cai:contrast=3,threshold=0.2",
        "dola:layers=[0,2]",
        'icd:sentence="a,b"',
        "cai+vcd",
    ]


def test_a_whole_number_is_the_same_method_as_its_fraction() -> None:
    assert method("cai", contrast=3).fingerprint == method("cai:contrast=3").fingerprint
    layer, share = method("cai:start_layer=3"), method("cai:start-layer=0.5")
    assert isinstance(layer.start_layer, int) and isinstance(share.start_layer, float)  # type: ignore[attr-defined]


def test_a_setting_goes_where_it_belongs() -> None:
    assert choose(["regular", "cai:attention", "cai", "cai+vcd"], ["contrast=3"]) == [
        method("regular"),
        Part("attention", method("cai", contrast=3.0)),
        method("cai", contrast=3.0),
        method("cai", contrast=3.0) + method("vcd"),
    ]
    assert method("pai+vcd", alpha=0.7) == method("pai:alpha=0.7+vcd:alpha=0.7")
    assert [label(each) for each in choose(["all", "cai:contrast=3"])] == [*method_names(), "cai:contrast=3"]


def test_combinations_of_earlier_releases_are_read() -> None:
    old = {"attention": method("cai").to_json(), "contrast": method("vcd").to_json()}
    assert method_from_json({"method": "combined", "parameters": old}) == method("cai+vcd")


@pytest.mark.parametrize(
    ("specs", "given_settings", "said"),
    [
        (["nonsense"], [], "no method 'nonsense'"),
        (["cai+"], [], "'cai\\+' has a place without a method's name"),
        ([":paper"], [], "a place without a method's name"),
        (["cai:"], [], "nothing after a colon"),
        (["cai:contrast=3,contrast=4"], [], "gives contrast twice"),
        (["cai:contrast=3:contrast=4"], [], "gives contrast twice"),
        (["cai:contrast=inf"], [], "contrast=inf is infinite"),
        (["vcd:alpha=nan"], [], "alpha=nan is not a number"),
        (["cai:nonsense"], [], "no preset 'nonsense'"),
        (["caii"], [], r"no method 'caii'\. Did you mean cai\? Methods: regular"),
        (["cai:papr"], [], r"no preset 'papr'\. Did you mean paper\? Its presets"),
        (["cai:contrst=3"], [], r"no parameter 'contrst'\. Did you mean contrast\? Parameters"),
        (["cai:nonsense=1"], [], "no parameter 'nonsense'"),
        (["cai"], ["nonsense=1"], "no parameter 'nonsense'"),
        (["cai", "regular"], ["nonsense=1"], "have no parameter"),
        (["cai"], ["contrast"], "not name=value"),
        (["cai:contrast="], [], "not name=value"),
        (["cai:tilt=sideways"], [], "takes score or exponential"),
        (["cai:contrast=much"], [], "takes a number"),
        (["cai"], ["contrast=0"], "below 1"),
        (["dola:layers=0,2"], [], r"list in brackets, layers=\[0,2\]"),
        (['icd:sentence="never closed'], [], "double quotes"),
        (["cai", "cai"], [], "named twice"),
        (["cai:contrast=3", "cai"], ["contrast=3"], "named twice"),
        (["opera+cai"], [], "search over beams"),
        ([], [], "No method"),
    ],
)
def test_what_is_wrong_is_named(specs: list[str], given_settings: list[str], said: str) -> None:
    with pytest.raises(InvalidMethod, match=said):
        choose(specs, given_settings)


@pytest.mark.parametrize(
    ("name", "parameters", "said"),
    [
        ("vcd", {"alpha": float("nan")}, "alpha=nan is not a number"),
        ("cai", {"strength": float("inf")}, "strength=inf is infinite"),
        ("cai", {"strength": -(10**400)}, "is infinite"),
        ("cai", {"contrast": "3"}, "contrast='3' is not understood. contrast takes a number"),
        ("cai", {"contrast": None}, "contrast=None is not understood"),
        ("cai", {"start_layer": True}, "start_layer=True is not understood"),
        ("vcd", {"noise_seed": 1.5}, "noise_seed takes a whole number"),
        ("dola", {"layers": 3}, "layers takes text or a list"),
        ("icd", {"sentence_ids": 3}, "sentence_ids takes"),
        ("confirm", {"retries": float("nan")}, "retries takes a whole number"),
        ("cai", {"query": "sideways"}, "query takes"),
    ],
)
def test_a_value_of_another_kind_is_refused_in_python_too(
    name: str, parameters: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidMethod) as refused:
        method(name, **parameters)
    assert said in str(refused.value)
    with pytest.raises(InvalidMethod):
        method(name).replace(**parameters)


@pytest.mark.parametrize("name", ["cls", "preset", "self", "parameters"])
def test_no_name_means_something_to_the_functions_that_take_parameters(name: str) -> None:
    for made in (lambda: method(f"cai:{name}=1"), lambda: method("cai").replace(**{name: 1})):
        with pytest.raises(InvalidMethod, match=f"cai has no parameter '{name}'"):
            made()


@pytest.mark.parametrize(
    "description",
    [
        {},
        {"method": "cai"},
        {"method": 5, "parameters": {}},
        {"method": "cai", "parameters": [1]},
        {"method": "cai", "parameters": {"cls": 1}},
        {"method": "combined", "parameters": {}},
        {"method": "combined", "parameters": {"methods": [5]}},
        {"method": "part", "parameters": {"part": "attention", "of": None}},
        {"method": "part", "parameters": {"part": "half", "of": {"method": "pai", "parameters": {}}}},
    ],
)
def test_what_describes_no_method_is_refused_and_has_some_label(description: dict[str, Any]) -> None:
    with pytest.raises(InvalidMethod):
        method_from_json(description)
    assert label_of(description)


def test_values_of_other_libraries_become_plain_ones() -> None:
    found = method("vcd", alpha=np.float32(0.5), noise_step=np.int64(3))
    assert (type(found.parameters()["alpha"]), type(found.parameters()["noise_step"])) == (float, int)
    assert method("dola", layers=[0, 2]) == method("dola:layers=[0,2]")
    assert method("vti", directions=Path("a b.safetensors")).parameters()["directions"] == "a b.safetensors"
    assert math.isinf(method("cai", threshold=math.inf).parameters()["threshold"])  # a gate that never opens


def test_a_file_may_stand_for_the_parameter_it_is_read_from():
    assert method("confirm:folder/own.json") == method("confirm", verdict="folder/own.json")
    assert method("confirm:coco:own.json:threshold=1") == method("confirm:coco:verdict=own.json,threshold=1")
    assert method("vti:v.safetensors").directions == "v.safetensors"
    with pytest.raises(InvalidMethod, match="cai has no preset"):
        method("cai:own.json")
