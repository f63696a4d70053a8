"""Settings that no one has named together: each composition is refused in one line, or works.

    python -m tests.faults.compositions [--trials 50] [--seed 0]

Draws a config, some settings that a user may choose, and two meshes. Three steps are trained on one device;
and two on the first mesh, of which the second one resumes. Both must have the same losses and gradient norms.
Then one device evaluates what the meshes have trained, a run that writes text predicts, and the first mesh
fine-tunes from it for a step.
"""

import argparse
import collections
import contextlib
import io
import json
import math
import os
import random
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import pytest

import launch
from tests import runs
from transformer.training import parallel
from workdir.opening import read_config

CONFIGS = (
    *("attention", "bert", "classification", "dpo", "finetune_chat", "finetune_question_answering"),
    *("lm", "lm_long", "question_answering"),
    *("rnn_translation", "summarization", "summarization_decoder", "transformer_xl", "translation"),
    *("vision", "word_embedding"),
)

SETTINGS: tuple[dict[str, Any], ...] = (
    *({"model.position": each}
      for each in ("none", "sinusoidal", "learned", "alibi", "shaw", "transformer_xl")),
    *({"model.position": "rope", "model.position_scaling": each, "model.position_factor": 2.0}
      for each in ("linear", "ntk", "yarn")),
    {"model.position": "t5", "model.share_position": True},
    {"model.position": "rope", "model.position_fraction": 0.5},
    *({"model.pattern": each, "model.pattern_size": 8}
      for each in ("window", "strided", "fixed", "global", "blocks")),
    *({"model.mixer": each} for each in ("latent", "plain", "linear", "mamba2", "kimi_delta", "rwkv7")),
    {"model.layers": ["delta", "full"],
     "model.layer_kinds": {"delta": {"mixer": "gated_delta"}, "full": {"position": "none"}}},
    *({"model.kernel": each} for each in ("blockwise", "reference", "unrolled")),
    *({"model.remat": each} for each in ("full", "dots", "attention", "dots_no_batch")),
    *({"model.norm": each} for each in ("layer", "none", "rms_offset")),
    *({"model.norm_placement": each} for each in ("post", "sandwich")),
    *({"model.feed_forward": each} for each in ("swiglu", "geglu", "relu2")),
    *({"model.num_layers": each} for each in (2, 3, 4)),
    *({key: True} for key in (
        "model.scan_layers", "model.parallel_sublayers", "model.qk_norm", "model.sinks", "model.skips",
        "model.output_bias", "model.use_bias", "model.scale_embeddings", "train.log_norms",
        "train.log_attention", "data.lowercase",
    )),
    *({key: 0.1} for key in (
        "model.dropout", "model.embedding_dropout", "model.attention_dropout", "loss.label_smoothing",
    )),
    {"model.dtype": "bfloat16"},
    {"model.num_experts": 4},
    {"model.num_experts": 4, "model.capacity_factor": 1.25},
    {"model.num_kv_heads": 1},
    {"model.soft_cap": 5.0, "model.logit_soft_cap": 10.0},
    {"model.tie_embeddings": False},
    {"model.value_embeddings": [0, -1]},
    {"model.lora_rank": 2, "optimizer.train_only": "lora"},
    {"model.parametrization": "mup", "model.base_width": 16, "model.base_head_dim": 8},
    {"loss.chunk_size": 16},
    {"loss.vocab_parts": 4},
    {"loss.z_loss": 1e-3},
    {"loss.name": "focal"},
    *({"optimizer.name": each} for each in ("adamw", "sgd", "lion", "adafactor", "cautious.adamw")),
    {"optimizer.name": "contrib.schedule_free_adamw", "optimizer.weight_decay": 0.0},
    {"optimizer.ema_decay": 0.9},
    {"optimizer.layer_decay": 0.8},
    {"optimizer.frozen_layers": 1},
    {"train.average_last": 2, "train.keep_last": 2, "train.checkpoint_every": 1},
    {"train.keep_best": "eval/loss"},
    {"train.until": {"batch_size": {"1": 4}}},
    *({"parallel.microbatches": each} for each in (2, 4)),
    {"parallel.rules": "sequence"},
    *({"data.tokenizer": each} for each in ("characters", "words")),
    {"data.workers": 0},
    *({"evaluate.batch_size": each} for each in (4, 16)),
    {"generate.beam_size": 3},
    *({f"{group}.weights": each} for group in ("generate", "sample") for each in ("int8", "bfloat16")),
    *({f"{group}.cache": "int8"} for group in ("generate", "sample")),
)  # fmt: skip
"""Settings of which a composition takes some: keys that belong together."""

SAME: dict[str, Any] = {
    "train.steps": 3,
    "train.log_every": 1,
    "train.batch_size": 8,
    "train.evaluate_batches": 1,
    "train.writers": "jsonl",
    "optimizer.schedule": "constant",
}
"""Keys of every run, unless a setting has another value."""

MESHES: tuple[dict[str, int], ...] = (
    *({axis: 2} for axis in ("data", "fsdp", "tensor", "context")),
    *({"expert": 2, axis: 2} for axis in ("data", "fsdp")),
    {"data": 2, "fsdp": 2},
    {"data": 2, "context": 2},
    {"fsdp": 2, "tensor": 2},
    {"fsdp": 4},
    {"tensor": 2, "context": 2},
    {"fsdp": 2, "tensor": 2, "context": 2},
    {"data": 2, "fsdp": 2, "tensor": 2},
)

TOLERANCES = {"float32": 3e-5, "bfloat16": 0.02}
"""The largest difference of losses and gradient norms, as a part of them or of 1: that of other orders of
sums in a `model.dtype`."""


def has(values: Any, key: str) -> bool:
    """Whether a config has a key, "model.d_model"."""
    first, _, rest = key.partition(".")
    return isinstance(values, Mapping) and first in values and (not rest or has(values[first], rest))


def composed(values: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Some of `SETTINGS` whose keys a config has, no two with the same key."""
    fitting = [each for each in SETTINGS if all(has(values, key) for key in each)]
    chosen: dict[str, Any] = {}
    for setting in rng.sample(fitting, min(len(fitting), rng.randint(2, 6))):
        chosen |= {} if chosen.keys() & setting.keys() else setting
    return chosen


def command(*arguments: str) -> tuple[int, str]:
    """The exit code of `launch.py` in this process, and what it printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        return launch.main([*arguments]), printed.getvalue()


def flags(keys: Mapping[str, Any], mesh: Mapping[str, int]) -> list[str]:
    """The flags of a run's keys, and of a mesh with as many devices as it says."""
    sizes = {f"parallel.mesh.{axis}": 1 for axis in ("data", "fsdp", "tensor", "context", "expert")}
    sizes |= {f"parallel.mesh.{axis}": size for axis, size in mesh.items()}
    texts = {key: json.dumps(x) if isinstance(x, list | dict) else x for key, x in {**keys, **sizes}.items()}
    return [f"--config.{key}={text}" for key, text in texts.items()]


def measured(folder: Path) -> dict[tuple[int, str], float]:
    """Loss and gradient norm of each step."""
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    names = ("train/loss", "train/gradient_norm")
    return {(row["step"], name): row[name] for row in rows for name in names if name in row}


def trial(config: str, keys: Mapping[str, Any], meshes: Sequence[Mapping[str, int]], folder: Path) -> str:
    """How a composition ends: `refused` by a training command, `ok`, or what is wrong."""
    values = read_config(config)
    keys = {key: value for key, value in {**SAME, **keys}.items() if has(values, key)}
    one, several = folder / "one", folder / "several"
    first = {**keys, "train.steps": 2}
    stages = {
        "trained on one device": [f"--config={config}", *flags(keys, {}), f"--workdir={one}"],
        "trained on a mesh": [f"--config={config}", *flags(first, meshes[0]), f"--workdir={several}"],
        "trained on another": [f"--config={config}", *flags(keys, meshes[1]), f"--workdir={several}"],
        "evaluated": ["--mode=evaluate", *flags({}, {}), f"--workdir={several}"],
        "predicted": ["--mode=predict", *flags({}, {}), "--prompt=def", f"--workdir={several}"],
        "fine-tuned": [
            *(f"--config={config}", *flags({**keys, "train.steps": 1}, meshes[0])),
            *(f"--config.initialize_from={several}", f"--workdir={folder / 'fine-tuned'}"),
        ],
    }
    if not ("generate" in values or "prompt" in values.get("sample", ())):
        del stages["predicted"]
    for stage, arguments in stages.items():
        try:
            code, printed = command(*arguments)
        except Exception as error:
            traceback.print_exc()
            return f"{stage}: {type(error).__name__}: {str(error)[:300]}"
        said = printed.strip().splitlines()[-1:]
        if code == 2 and stage.startswith("trained") and said[0].startswith("error: "):
            return f"refused: {stage}: {said[0]}"
        if code:
            return f"{stage}: code {code}: {printed[-300:]}"
    expected, got = measured(one), measured(several)
    tolerance = TOLERANCES[keys.get("model.dtype", "float32")]
    far = {
        at: (x, got.get(at))
        for at, x in expected.items()
        if not abs(x - got.get(at, math.nan)) <= tolerance * max(1.0, abs(x))
    }
    return f"differs: {far}" if far or not expected else "ok"


def main() -> None:
    """Prints each that is refused or wrong, and how many ended how."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", 8)
    counts: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.chdir(runs.ROOT)
        patch.setenv("XDG_CACHE_HOME", os.path.join(name, "cache"))
        patch.setattr(parallel, "make_mesh", runs.mesh_of_few)
        patch.setattr("matplotlib.figure.Figure.savefig", runs.save_blank)
        for number in range(given.trials):
            rng = random.Random(f"{given.seed}/{number}")
            config = f"configs/{rng.choice(CONFIGS)}.py:tiny"
            keys, meshes = composed(read_config(config), rng), [rng.choice(MESHES) for _ in range(2)]
            ended = trial(config, keys, meshes, Path(name) / str(number))
            counts[ended.partition(":")[0]] += 1
            if ended != "ok":
                print(f"{number}: {config} {keys} {meshes}: {ended}", flush=True)
    print(dict(counts))
    sys.exit(bool(counts.keys() - {"ok", "refused"}))


if __name__ == "__main__":
    main()
