"""Plans of whole runs on this machine's CPU devices, against the runs themselves."""

import dataclasses
import json
import math
import re

import jax
import numpy as np
import pytest

import launch
from experiments import find_experiment
from tests import runs
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.planning.memory import held, saved_bytes
from transformer.planning.plan import lines, make_plan
from transformer.training.logging.throughput import sizes_of
from transformer.training.run import Run
from transformer.training.step import memory_gb
from workdir.opening import check_config, read_config

pytestmark = pytest.mark.usefixtures("in_root")

SMALL = {
    "train.batch_size": "8",
    "model.d_model": "32",
    "model.num_heads": "4",
    "model.d_ff": "64",
    "model.scan_layers": "True",
    "model.num_layers": "4",
    "data.sequence_length": "64",
    "data.tokenizer": "bpe",
    "data.vocab_size": "512",
    "optimizer.name": "adamw",
}


def run_of(config="configs/lm.py:tiny", devices=1, **keys):
    """A run without data on some of the CPU devices."""
    overrides = [(key.replace("__", "."), str(value)) for key, value in keys.items()]
    frozen = check_config(read_config(config), overrides)
    experiment = find_experiment(frozen.experiment)(frozen, tokenizer=Tokenizer.blank(frozen.data.vocab_size))
    return Run(experiment, frozen, "nowhere", devices=jax.devices()[:devices])


def small(**keys):
    return run_of(**({key.replace(".", "__"): value for key, value in SMALL.items()} | keys))


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize(
    "config",
    [
        "configs/lm.py:tiny",
        "configs/transformer_xl.py:tiny",
        "configs/translation.py:tiny",
        "configs/rnn_translation.py:tiny",
        "configs/summarization_decoder.py:tiny",
        "configs/papers/t5.py:tiny",
        "configs/vision.py:tiny",
        "configs/bert.py:tiny",
        "configs/word_embedding.py:tiny",
    ],
)
def test_shapes_of_batches_are_those_of_the_data(config):
    frozen = check_config(read_config(config))
    experiment = find_experiment(frozen.experiment)(frozen)
    batch = next(iter(experiment.train_data().iterate(0)))
    shapes = {name: (each.shape, np.dtype(each.dtype)) for name, each in experiment.batch_shapes().items()}
    assert shapes == {name: (each.shape, each.dtype) for name, each in batch.items()}


def test_a_blank_tokenizer_has_its_size():
    assert Tokenizer.blank(1000).vocab_size == 1000


@pytest.mark.thorough
@pytest.mark.parametrize("mesh", [{}, {"parallel.mesh.data": 2, "parallel.mesh.fsdp": 4}])
def test_memory_is_that_of_the_run(mesh, tmp_path):
    """What the program of a real run holds, compiled for real batches, is what the plan of its folder
    says."""
    source, out = runs.write_corpus(tmp_path / "data"), tmp_path / "plan.json"
    keys = [f"--config.{key}={value}" for key, value in mesh.items()]
    steps = ["--config.train.batch_size=8", "--config.train.steps=2", "--config.train.log_every=1"]
    assert launch.main(runs.tiny(source, tmp_path / "run", *steps, *keys)) == 0
    logged = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    (measured,) = {line["train/step_gb"] for line in logged if "train/step_gb" in line}
    assert launch.main(["--mode=plan", f"--workdir={tmp_path / 'run'}", f"--output={out}"]) == 0
    assert json.loads(out.read_text())["memory_total"] / 2**30 == pytest.approx(measured, rel=1e-6)


def test_parts_of_the_memory():
    run = small(devices=8, parallel__mesh__data=2, parallel__mesh__fsdp=4)
    plan, compiled = make_plan(run), run.compiled()
    params = held(run.abstract.params)
    whole = 4 * plan.parameters
    assert whole / 4 <= params < whole / 3  # norms and the like are replicated
    assert plan.memory.parameters == plan.memory.gradients == params
    assert plan.memory.total == memory_gb(compiled) * 2**30
    assert plan.memory.working >= 0
    assert plan.mesh == {"data": 2, "fsdp": 4}


def states(run, count=1):
    """Bytes of the states (b, t, d) of all layers in float32, `count` of them."""
    c = run.config
    size = c.train.batch_size * c.data.sequence_length * c.model.d_model * 4
    return c.model.num_layers * count * size


def test_rematerialisation_saves_the_inputs_of_blocks():
    """Deeper models save one more (b, t, d) for each layer, and nothing else."""
    four, eight = small(model__remat="full"), small(model__remat="full", model__num_layers=8)
    assert saved_bytes(eight) - saved_bytes(four) == states(four)
    plain = saved_bytes(small(model__num_layers=8)) - saved_bytes(small())
    assert plain > 8 * states(four)


def test_microbatches_save_a_part():
    whole, parts = (saved_bytes(small(model__remat="full", parallel__microbatches=n)) for n in (1, 4))
    assert parts < whole / 2


@pytest.mark.thorough
def test_flops_are_those_of_the_model():
    """6 N and attention for each token, of which causal attention's blocks leave some out."""
    run = small()
    plan = make_plan(run)
    assert plan.model_flops == run.experiment.flops_per_token(run.abstract.params) * plan.tokens
    assert plan.schedule.flops == pytest.approx(plan.model_flops, rel=0.05)
    full = make_plan(small(model__remat="full"))
    assert full.schedule.flops > 1.15 * plan.schedule.flops


def test_what_mfu_counts_is_not_said_to_be_a_part_of_what_is_executed():
    """Causal kernels leave out half of attention, of which MFU counts all."""
    plan = make_plan(small())
    less = dataclasses.replace(plan.schedule, flops=0.9 * plan.model_flops)
    (line,) = (line for line in lines(dataclasses.replace(plan, schedule=less)) if "FLOP per device" in line)
    executed, counted = re.fullmatch(
        r"([\d.]+) \wFLOP per device and step; MFU counts ([\d.]+); .*", line
    ).groups()
    assert float(executed) == pytest.approx(0.9 * float(counted), rel=0.01)


@pytest.mark.thorough
def test_flops_with_adapters_are_those_of_the_model():
    lora = {"model.lora_rank": "2", "optimizer.train_only": "lora"}
    plan = make_plan(run_of(**SMALL, **lora, model__kernel="reference"))
    assert plan.model_flops == pytest.approx(plan.schedule.flops, rel=1e-3)


@pytest.mark.thorough
def test_devices_share_the_flops_and_gather_the_parameters():
    run = small(devices=8, parallel__mesh__fsdp=8, parallel__mesh__data=1)
    one, eight = make_plan(small()), make_plan(run)
    assert eight.schedule.flops == pytest.approx(one.schedule.flops / 8, rel=0.02)
    gathered = sum(row.size for row in eight.schedule.moved if row.operation == "all-gather")
    kernels = [leaf.shape for leaf in jax.tree.leaves(run.abstract.params) if len(leaf.shape) > 2]
    assert gathered > 4 * sum(map(math.prod, kernels))


def test_times_of_cpus_are_not_known():
    plan = make_plan(small())
    assert (plan.seconds, plan.mfu, plan.tokens_per_second, plan.cost(1.0)) == (0, 0, 0, 0)
    assert plan.fits
    text = "\n".join(lines(plan))
    assert "times are not known: cpu" in text


@pytest.mark.thorough
def test_the_command_writes_json(tmp_path, capsys):
    out = tmp_path / "plan.json"
    keys = [f"--config.{key}={value}" for key, value in SMALL.items()]
    keys.append("--config.parallel.mesh.data=8")
    flags = ["--mode=plan", "--config=configs/lm.py:tiny", f"--output={out}", *keys]
    assert launch.main(flags) == 0
    found = json.loads(out.read_text())
    assert found["devices"] == len(jax.devices())
    assert found["memory_total"] == sum(found["memory"].values())
    assert found["fits"]
    printed = capsys.readouterr().out
    assert f"{found['parameters']:,} parameters" in printed
    assert re.search(r"^memory per device +MB$", printed, re.MULTILINE)
    assert f"{found['memory_total'] / 1e6:.2f}" in printed
    assert f"{found['schedule']['flops'] / 1e6:.2f} MFLOP" in printed


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--topology=h900:1"], "expected one of h100, h200, b200, gb200, v5e, v5p, v6e, tpu7x with a shape"),
        (["--efficiency=2"], "--efficiency: 2; expected a share above 0, at most 1"),
        (["--efficiency=much"], "--efficiency: invalid share value: 'much'"),
        (["--slices=0"], "--slices: 0; expected 1 or more"),
        (["--slices=2", "--topology=h100:1x8"], "--slices: 2; only TPUs are in slices"),
        (["--compile=0", "--search"], "--compile: 0; expected 1 or more"),
        (["--price=-1"], "--price: -1.0; expected 0 or more"),
        (["--price=nan"], "--price: nan; expected 0 or more"),
        (["--output=no/such/plan.json"], "--output: there is no folder 'no/such'"),
        (["--search"], "--search: the rates of cpu are not known; give --topology"),
        (["--config.model.d_modl=3"], "d_modl"),
    ],
)
def test_mistakes_are_told_in_one_line(flags, said, capsys):
    assert launch.main(["--mode=plan", "--config=configs/lm.py:tiny", *flags]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_nothing_is_written():
    before = {*runs.ROOT.iterdir()}
    assert launch.main(["--mode=plan", "--config=configs/lm.py:tiny"]) == 0
    assert {*runs.ROOT.iterdir()} == before


def products(jaxpr) -> float:
    """FLOPs of all products of a traced function."""
    total = 0.0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            total += 2 * math.prod(shape[axis] for axis in contracted) * equation.outvars[0].aval.size
        elif equation.primitive.name.startswith("ragged_dot"):  # each row with the matrix of one expert
            total += 2 * equation.invars[0].aval.shape[-1] * equation.outvars[0].aval.size
        inner = [getattr(each, "jaxpr", each) for each in jax.tree.leaves([*equation.params.values()])]
        parts = [products(each) for each in inner if hasattr(each, "eqns")]
        total += equation.params.get("length", 1) * (max if equation.primitive.name == "cond" else sum)(
            parts or [0.0]
        )
    return total


EXACT = {
    "plain": {},
    "a table of its own": {"model.vocab_size": "1000"},
    "grouped heads": {"model.num_kv_heads": "2"},
    "one key head": {"model.num_kv_heads": "1", "model.head_dim": "16"},
    "gated": {"model.feed_forward": "swiglu"},
    "latent": {"model.mixer": "latent", "model.latent_dim": "16"},
    "plain attention": {"model.mixer": "plain"},
    "parallel": {"model.parallel_sublayers": "True"},
    "skips": {"model.skips": "True", "model.scan_layers": "False"},
    "adapters": {"model.lora_rank": "2", "optimizer.train_only": "lora"},
}
"""Models of which every product is one that MFU counts."""

MORE = {
    "experts": {"model.num_experts": "8", "model.experts_per_token": "2"},
    "gated experts": {"model.num_experts": "4", "model.feed_forward": "swiglu"},
    "experts of several widths": {
        "model.layers": "('a', 'b', 'c')",
        "model.layer_kinds": "{'a': {'num_experts': 4, 'experts_per_token': 1, 'd_ff': 256}, "
        "'b': {'num_experts': 2, 'feed_forward': 'swiglu', 'd_ff': 32}, 'c': {}}",
        "model.num_layers": "6",
    },
    "a sliding window": {"model.pattern": "window", "model.pattern_size": "16"},
    "relative positions": {"model.position": "transformer_xl"},
    "linear attention": {"model.mixer": "linear"},
}
"""Models with products that MFU does not count: of empty places of experts, masked keys, positions."""


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*EXACT, *MORE])
def test_model_flops_are_at_most_the_products_of_the_step(name):
    """Three times those of a forward pass with the kernel that leaves nothing out, counted in its trace."""
    run = small(**{"model.kernel": "reference"} | (EXACT | MORE)[name])
    row = {
        key: jax.ShapeDtypeStruct(value.shape, value.dtype)
        for key, value in run.experiment.data.blank().items()
    }

    def loss(params, batch):
        return run.experiment.loss(params, batch, jax.random.key(0), False)["loss"].total

    params = run.abstract.params
    counted = 3 * products(jax.make_jaxpr(loss)(params, row).jaxpr)
    model = run.experiment.flops_per_token(params) * row["tokens"].shape[1]
    assert model == pytest.approx(counted) if name in EXACT else 0.2 * counted < model < counted


def test_a_token_is_multiplied_with_the_experts_that_it_is_sent_to():
    """By the sizes of the arrays of every layer."""
    run = small(**MORE["experts of several widths"])
    chosen = {"a": 1 / 4, "b": 1}  # of b both experts
    expected = sum(
        size * next((share for kind, share in chosen.items() if f"/{kind}/" in f"/{path}/"), 1.0)
        for path, size in sizes_of(run.abstract.params).items()
        if path.endswith("kernel") and "/experts/" in path
    )
    every = sum(
        size
        for path, size in sizes_of(run.abstract.params).items()
        if path.endswith("kernel") and "/experts/" in path
    )
    assert run.config.model.expert_share == pytest.approx(expected / every)
