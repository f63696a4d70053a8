import dataclasses
import json
import random
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pytest

from experiments import EXPERIMENTS, find_experiment
from transformer.config import Bounded, from_values, idle_keys, refuse_idle, to_values
from transformer.config_help import Key, describe_keys
from transformer.errors import UserError


@dataclasses.dataclass(frozen=True)
class Group:
    width: int
    rate: float
    kind: Literal["a", "b"]

    def __post_init__(self):
        if self.width % 2:
            raise UserError(f"width: {self.width} is odd")


@dataclasses.dataclass(frozen=True)
class Newer:
    every: int = 3
    names: tuple[str, ...] = ("a",)
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Root:
    name: str
    flag: bool
    group: Group
    sizes: tuple[int, ...]
    arguments: Mapping[str, Any]
    newer: Newer
    depth: int = 2


def values() -> dict[str, Any]:
    return {
        "name": random.choice(["", "x", "a=b"]),
        "flag": random.random() < 0.5,
        "group": {"width": 2 * random.randrange(9), "rate": random.random(), "kind": random.choice("ab")},
        "sizes": [random.randrange(9) for _ in range(random.randrange(4))],
        "arguments": {"b2": 0.95, "nested": {"deep": [1, 2]}},
        "newer": {"every": 7, "names": [], "more": {"a": 1}},
        "depth": random.randrange(9),
    }


def test_values_survive_the_way_there_and_back_also_through_json():
    given = values()
    config = from_values(Root, given)
    assert to_values(config) == given
    assert from_values(Root, json.loads(json.dumps(to_values(config)))) == config
    assert isinstance(config.sizes, tuple) and isinstance(config.group, Group)


def test_a_missing_key_has_its_default_and_a_missing_group_has_those_of_its_keys():
    given = values()
    older = {key: value for key, value in given.items() if key not in ("newer", "depth")}
    config = from_values(Root, older)
    assert config.depth == 2 and config.newer == Newer()
    assert to_values(config) == older | {"newer": {"every": 3, "names": ["a"], "more": {}}, "depth": 2}
    assert from_values(Root, older | {"newer": {"every": 5}}).newer == Newer(every=5)
    assert older.keys() == given.keys() - {"newer", "depth"}  # what was given stays as it was


@dataclasses.dataclass(frozen=True)
class Optional:
    rate: float | None = None


@dataclasses.dataclass(frozen=True)
class Several:
    items: tuple[Optional, ...] = ()


def test_a_key_may_be_left_open_also_in_a_list_of_groups():
    given = {"items": [{"rate": 2}, {}, {"rate": None}]}
    config = from_values(Several, given)
    assert config == Several((Optional(2.0), Optional(), Optional()))
    assert from_values(Several, json.loads(json.dumps(to_values(config)))) == config
    with pytest.raises(UserError, match=r"^config.items\[0\].rate: 'x' \(str\); expected float$"):
        from_values(Several, {"items": [{"rate": "x"}]})


@dataclasses.dataclass(frozen=True)
class Weighted:
    weights: Mapping[str, float] = dataclasses.field(default_factory=dict)


def test_the_values_of_a_mapping_have_its_type():
    weights = from_values(Weighted, {"weights": {"a": 2, "b": 0.5}}).weights
    assert weights == {"a": 2.0, "b": 0.5} and isinstance(weights["a"], float)
    for wrong in ("x", True, {"c": 1}, None):
        with pytest.raises(UserError) as error:
            from_values(Weighted, {"weights": {"a": 1, "b": wrong}})
        assert str(error.value) == f"config.weights.b: {wrong!r} ({type(wrong).__name__}); expected float"


def test_nothing_can_be_changed_afterwards():
    given = values()
    config = from_values(Root, given)
    given["arguments"]["nested"]["deep"].append(3)
    assert config.arguments["nested"]["deep"] == [1, 2]
    with pytest.raises(TypeError):
        config.arguments["b2"] = 0.9
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.group.width = 4


@pytest.mark.parametrize("given", [1, np.sqrt(1)])
def test_an_int_will_do_for_a_float_and_so_will_one_of_numpy(given):
    rate = from_values(Root, values() | {"group": {"width": 2, "rate": given, "kind": "a"}}).group.rate
    assert rate == 1.0 and type(rate) is float


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nam": "x"}, "config.nam: unknown key; did you mean 'name'?"),
        (
            {"zzz": 1},
            "config.zzz: unknown key; valid keys: name, flag, group, sizes, arguments, newer, depth",
        ),
        ({"group": {"widht": 2}}, "config.group.widht: unknown key; did you mean 'width'?"),
        ({"group": {"width": 2, "kind": "a"}}, "config.group.rate: missing key; expected float"),
        ({"group": {"width": 3, "rate": 0.0, "kind": "a"}}, "config.group.width: 3 is odd"),
        (
            {"group": {"width": 2, "rate": 0.0, "kind": "c"}},
            "config.group.kind: 'c' (str); expected one of 'a', 'b'",
        ),
        (
            {"group": {"width": 2.0, "rate": 0.0, "kind": "a"}},
            "config.group.width: 2.0 (float); expected int",
        ),
        (
            {"group": {"width": True, "rate": 0.0, "kind": "a"}},
            "config.group.width: True (bool); expected int",
        ),
        (
            {"group": {"width": 2, "rate": False, "kind": "a"}},
            "config.group.rate: False (bool); expected float",
        ),
        ({"group": 3}, "config.group: 3 (int); expected a group of keys"),
        ({"name": None}, "config.name: None (NoneType); expected str"),
        ({"flag": 1}, "config.flag: 1 (int); expected bool"),
        ({"sizes": [1, "2"]}, "config.sizes[1]: '2' (str); expected int"),
        ({"sizes": 3}, "config.sizes: 3 (int); expected a list of int"),
        ({"arguments": [1]}, "config.arguments: [1] (list); expected a mapping"),
        (
            {"arguments": {"a": {"b": np.float32(0.5)}}},
            "config.arguments.a: {'b': np.float32(0.5)} (dict); expected a value that JSON has",
        ),
        ({"arguments": {"a": {1, 2}}}, "config.arguments.a: {1, 2} (set); expected a value that JSON has"),
    ],
)
def test_the_error_names_the_key_the_value_and_what_would_be_valid(change, message):
    with pytest.raises(UserError) as error:
        from_values(Root, values() | change)
    assert str(error.value) == message


def test_a_key_without_a_default_may_not_be_missing():
    for key, missing in {"name": "name", "group": "group.width", "sizes": "sizes"}.items():
        given = values()
        del given[key]
        with pytest.raises(UserError, match=rf"^config\.{missing}: missing key; expected "):
            from_values(Root, given)


def test_a_subclass_checks_what_its_base_classes_check():
    def below(cls):
        return {cls, *(each for sub in cls.__subclasses__() for each in below(sub))}

    for cls in map(find_experiment, EXPERIMENTS):  # imports all config classes
        assert issubclass(cls.Config, Bounded)
    for cls in below(Bounded) - {Bounded}:
        assert cls.checks.keys() <= {field.name for field in dataclasses.fields(cls)}, cls
        for base in cls.__mro__[1:]:
            checks = getattr(base, "checks", {})
            assert checks.keys() <= cls.checks.keys(), (cls, base)


def test_a_combination_is_checked_where_a_key_was_changed():
    checked = []

    @dataclasses.dataclass(frozen=True)
    class Pair(Bounded):
        few: int = 1
        many: list = dataclasses.field(default_factory=lambda: [1])

    Pair.checks = {name: lambda pair, name=name: checked.append(name) for name in ("few", "many")}
    Pair(), Pair(1, [1])
    assert checked == []
    Pair(2), Pair(many=[])
    assert checked == ["few", "many"]


def test_a_key_that_does_nothing_is_refused_where_it_is_not_left_alone():
    @dataclasses.dataclass(frozen=True)
    class Decay:
        kind: str = "none"
        steps: int = 3
        final: int = 0

        def idle(self):
            return {} if self.kind == "line" else {"steps": f"with kind {self.kind!r}", "final": ""}

    @dataclasses.dataclass(frozen=True)
    class Whole:
        decay: Decay

    for fine in (Decay(), Decay("line", 7), Decay("line", 3), Decay(final=1)):
        refuse_idle(Whole(fine))
    with pytest.raises(UserError) as error:
        refuse_idle(Whole(Decay("none", 7)))
    assert str(error.value) == "config.decay.steps: 7 does nothing with kind 'none'; leave it at 3"
    assert [key for key, *_ in idle_keys(Whole(Decay()))] == ["decay.steps", "decay.final"]
    assert [*idle_keys(Whole(Decay("line")))] == []

    @dataclasses.dataclass(frozen=True)
    class Outer:
        whole: Whole
        decay: Decay

        def idle(self):
            return {"decay.kind": "", "whole.decay.kind": "with this whole"}

    outer = Outer(Whole(Decay("line")), Decay("line"))
    assert [(key, why) for key, *_, why in idle_keys(outer)] == [
        ("whole.decay.kind", "with this whole"),
        ("decay.kind", ""),
    ]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_number_is_finite(value):
    given = values()
    given["group"]["rate"] = value
    with pytest.raises(UserError, match=r"^config\.group\.rate: .*expected a finite number"):
        from_values(Root, given)


@dataclasses.dataclass(frozen=True)
class Base:
    width: int = 4  # width of "x" # and more
    kind: Literal["a", "b"] = "a"  # a or b
    plain: str = ""


@dataclasses.dataclass(frozen=True)
class Derived(Base):
    width: int = 8
    # what is above
    rates: tuple[float, ...] = (
        0.5,
        1.0,
    )
    kind: Literal["a", "b"] = "b"  # another meaning

    # no comment of a field

    free: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # anything


@dataclasses.dataclass(frozen=True)
class Described:
    name: str  # of the run
    group: Derived
    steps: int = 3


def test_a_keys_meaning_is_the_comment_on_its_field_or_on_that_of_a_base_class():
    assert describe_keys(Described) == (
        Key("name", "str", None, "of the run"),
        Key("group.width", "int", 8, 'width of "x" # and more'),
        Key("group.kind", "one of 'a', 'b'", "b", "another meaning"),
        Key("group.plain", "str", "", ""),
        Key("group.rates", "a list of float", [0.5, 1.0], "what is above"),
        Key("group.free", "a mapping", {}, "anything"),
        Key("steps", "int", 3, ""),
    )
