"""The search, on CPU devices that are taken for H100s."""

import dataclasses
import functools
import json
import math

import pytest

import launch
from tests import runs
from tests.planning.test_plan import run_of
from transformer.errors import UserError
from transformer.planning import plan as planning
from transformer.planning import search
from transformer.planning.hardware import CHIPS
from transformer.planning.search import candidates, meshes, ranking
from transformer.training import parallel

pytestmark = pytest.mark.usefixtures("in_root")

KEYS = {
    "train.batch_size": "16",
    "model.d_model": "32",
    "model.num_heads": "4",
    "model.num_kv_heads": "4",
    "model.d_ff": "64",
    "model.scan_layers": "True",
    "data.tokenizer": "bpe",
    "data.vocab_size": "512",
    "optimizer.name": "adamw",
}


@pytest.fixture
def memory(monkeypatch):
    """Makes CPUs H100s, all of them, with a memory of that many bytes."""
    monkeypatch.setattr(parallel, "make_mesh", runs.MAKE_MESH)

    def set_memory(size=80e9):
        chip = dataclasses.replace(CHIPS["h100"], memory=size)
        monkeypatch.setattr(search, "chip_of", lambda devices: chip)
        monkeypatch.setattr(planning, "chip_of", lambda devices: chip)

    set_memory()
    return set_memory


def planned(overrides):
    """The run, opened once for all tests."""
    return opened(*sorted((KEYS | dict(overrides)).items()))


@functools.cache
def opened(*keys):
    return run_of(devices=8, **{key.replace(".", "__"): value for key, value in keys})


def mesh_of(each):
    return tuple(int(each.keys[f"parallel.mesh.{axis}"]) for axis in ("data", "fsdp", "tensor"))


def test_meshes_are_all_factorisations():
    found = [tuple(each.values()) for each in meshes(64)]
    assert len(found) == len(set(found)) == 7 + 6 + 5 + 4
    assert all(math.prod(each) == 64 for each in found)
    assert {each[2] for each in meshes_of(6)} == {1, 2}


def meshes_of(devices):
    return [tuple(each.values()) for each in meshes(devices)]


@pytest.mark.thorough
def test_candidates_are_sorted_and_possible(memory):
    found = candidates(planned, [])
    assert [each.seconds for each in found] == sorted(each.seconds for each in found)
    # 4 heads cannot be divided by 8
    assert {mesh_of(each) for each in found} == {each for each in meshes_of(8) if each[2] < 8}
    assert {each.keys["model.remat"] for each in found} == set(search.REMATS)
    assert all(each.keys["parallel.microbatches"] == "1" for each in found)
    assert all(each.keys["loss.vocab_parts"] == "1" for each in found)


@pytest.mark.thorough
def test_less_memory_asks_for_more_devices_or_less_to_save(memory):
    plenty = candidates(planned, [])
    most = max(each.memory for each in plenty)
    memory(most / 2)
    few = candidates(planned, [])
    assert few
    assert all(each.memory < search.FILLED * most / 2 for each in few)
    assert any(int(each.keys["parallel.microbatches"]) > 1 for each in few)
    assert {each.keys["loss.vocab_parts"] for each in few} == {"1", "8"}
    memory(1.0)
    assert candidates(planned, []) == []


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize(("flags", "share"), [([], 0.53), (["--efficiency=0.8"], 0.8)])
def test_the_share_of_the_rates_is_that_of_the_chip_or_the_given_one(flags, share, memory, capsys, tmp_path):
    out = tmp_path / "plan.json"
    keys = [f"--config.{key}={value}" for key, value in KEYS.items()]
    assert launch.main(["--mode=plan", "--config=configs/lm.py:tiny", f"--output={out}", *flags, *keys]) == 0
    found = json.loads(out.read_text())
    assert found["efficiency"] == share
    assert found["seconds"] == pytest.approx(found["schedule"]["seconds"] / share)
    assert f"(at {share:.0%} of the data sheet's rates)" in capsys.readouterr().out


def test_keys_that_are_given_stay(memory):
    given = [("parallel.mesh.fsdp", "4"), ("model.remat", "full"), ("parallel.microbatches", "2")]
    found = candidates(planned, given)
    assert {mesh_of(each) for each in found} == {(2, 4, 1), (1, 4, 2)}
    assert {each.keys["model.remat"] for each in found} == {"full"}
    assert {each.keys["parallel.microbatches"] for each in found} == {"2"}


def test_a_batch_that_not_all_devices_divide_is_left_to_the_meshes_that_do(memory):
    found = candidates(planned, [("train.batch_size", "4"), ("model.remat", "full")])
    assert {mesh_of(each) for each in found} == {each for each in meshes_of(8) if each[2] in (2, 4)}


def test_other_axes_keep_their_sizes(memory):
    found = candidates(planned, [("parallel.mesh.context", "4"), ("model.remat", "full")])
    assert {mesh_of(each) for each in found} == {(2, 1, 1), (1, 2, 1), (1, 1, 2)}


@pytest.mark.parametrize(
    ("tensor", "why"), [("8", r"'kv_heads', 4 wide"), ("3", "none has the sizes that are given")]
)
def test_where_no_mesh_can_be_it_says_why(memory, tensor, why):
    with pytest.raises(UserError, match=f"no mesh .* over 8 devices can be: .*{why}"):
        candidates(planned, [("parallel.mesh.tensor", tensor)])


def test_a_vocabulary_that_has_no_eight_parts_is_left_whole(memory):
    given = [("data.vocab_size", "509"), ("model.vocab_multiple", "1"), ("parallel.mesh.fsdp", "8")]
    (plenty,) = candidates(planned, [*given, ("model.remat", "full")])
    memory(plenty.memory)
    (few,) = candidates(planned, [*given, ("model.remat", "full")])
    assert few.keys["loss.vocab_parts"] == "1"
    assert int(few.keys["parallel.microbatches"]) > 1
    (given_one,) = candidates(planned, [*given, ("model.remat", "full"), ("loss.vocab_parts", "1")])
    assert "loss.vocab_parts" not in given_one.keys


@pytest.mark.thorough
def test_half_of_what_is_compiled_are_other_meshes(memory):
    found = list(ranking(planned, [], 4, 0.5))
    assert len(found) == 4
    assert len({mesh_of(each) for each, *_ in found[:2]}) == 1
    assert len({mesh_of(each) for each, *_ in found}) == 3
    best = min(found[:2], key=lambda each: each[1].seconds)[0]
    assert {each.keys["model.remat"] for each, *_ in found[2:]} == {best.keys["model.remat"]}
    for each, plan, why in found:
        assert not why
        assert tuple(plan.mesh.get(axis, 1) for axis in ("data", "fsdp", "tensor")) == mesh_of(each)
        assert plan.seconds == pytest.approx(plan.schedule.seconds / 0.5)


@pytest.mark.thorough
def test_the_command_prints_the_fastest(memory, capsys, tmp_path):
    keys = [f"--config.{key}={value}" for key, value in KEYS.items()]
    out = tmp_path / "plan.json"
    flags = ["--mode=plan", "--config=configs/lm.py:tiny", "--search", "--compile=2", f"--output={out}"]
    assert launch.main([*flags, *keys]) == 0
    printed = capsys.readouterr().out.splitlines()
    fastest = printed[-1].removeprefix("fastest: ")
    rows = {line.split("  ")[-1]: float(line.split()[0]) for line in printed[1:3]}
    assert fastest in rows
    assert rows[fastest] == min(rows.values())
    assert json.loads(out.read_text())["seconds"] * 1e3 == pytest.approx(rows[fastest], abs=0.06)
    memory(1.0)
    assert launch.main([*flags, *keys]) == 1
    assert "nothing fits" in capsys.readouterr().out


@pytest.mark.thorough
def test_what_does_not_fit_is_said(memory, capsys):
    memory(1000.0)
    keys = [f"--config.{key}={value}" for key, value in KEYS.items()]
    assert launch.main(["--mode=plan", "--config=configs/lm.py:tiny", *keys]) == 1
    assert "DOES NOT FIT" in capsys.readouterr().out
