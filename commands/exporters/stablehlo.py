"""Writes a run's model as StableHLO programs of fixed shapes, for `--mode=export --format=stablehlo`."""

import argparse
from pathlib import Path
from typing import Any

import jax
import numpy as np

from transformer.decoding.exported import export
from transformer.errors import UserError
from transformer.training.checkpoints.checkpoint import Step
from transformer.training.run import Run
from workdir.folder import write_json

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")

EXAMPLE = '''"""Continues token ids greedily with jax and numpy alone: python run.py 1 17 4"""

import json
import sys
from pathlib import Path

import jax
import jax.export
import numpy as np

folder = Path(__file__).parent
shape = json.loads((folder / "signature.json").read_text())
prefill, step = (
    jax.jit(jax.export.deserialize(bytearray((folder / f"{name}.stablehlo").read_bytes())).call)
    for name in ("prefill", "step")
)
with np.load(folder / "weights.npz") as stored:
    # NumPy's files name no types of few bits, such as bfloat16.
    weights = [jax.device_put(stored[name].view(kind)) for name, kind in shape["weights"].items()]

given = [int(each) for each in sys.argv[1:]]
tokens = np.zeros((shape["batch"], shape["length"]), np.int32)
tokens[:, : len(given)] = given
logits, cache = prefill(weights, tokens, np.full(shape["batch"], len(given), np.int32))
new = []
while len(new) < shape["room"]:
    token = np.argmax(logits, axis=-1).astype(np.int32)
    if token[0] == shape["eos_id"]:
        break
    new.append(int(token[0]))
    logits, cache = step(weights, token, cache)
print(*new)
'''
"""A program beside the files that shows how they are used, and which a test runs."""


def check(flags: argparse.Namespace) -> None:
    """Raises `UserError` for impossible shapes or unknown platforms."""
    for name in ("batch", "length", "room"):
        if vars(flags)[name] < 1:
            raise UserError(f"--{name}: {vars(flags)[name]}; expected at least 1")
    for platform in filter(None, flags.platforms.split(",")):
        if platform not in PLATFORMS:
            raise UserError(f"--platforms: {platform!r}; expected some of {', '.join(PLATFORMS)}")


def write(run: Run, step: Step, folder: Path, flags: argparse.Namespace) -> str:
    """Writes the programs, the weights, the tokenizer, the shapes and an example into a new folder; returns a
    line on them.

    Raises:
      UserError: the model does not generate, or does not read this many tokens.
    """
    experiment: Any = run.experiment
    if experiment.stepper is None:
        raise UserError(f"--format=stablehlo: a model of {run.config.experiment} does not generate")
    tokenizer, most = experiment.data.tokenizer, experiment.longest
    needed = flags.length + (flags.room if experiment.is_language_model else 0)
    if needed > most:
        raise UserError(f"--length, --room: {needed} tokens; the model reads {most} (model.max_length)")
    params = jax.device_get(run.restore_params(step))  # whole, and of no mesh
    platforms = [item for item in flags.platforms.split(",") if item]
    stepper = experiment.stepper(params)
    programs = export(stepper, flags.batch, flags.length, flags.room, platforms)
    folder.mkdir(parents=True)
    (folder / "prefill.stablehlo").write_bytes(programs.prefill)
    (folder / "step.stablehlo").write_bytes(programs.step)
    weights: dict[str, Any] = programs.weights
    np.savez(folder / "weights.npz", **weights)
    tokenizer.save(folder / "tokenizer.json")
    ids = {"bos_id": tokenizer.bos_id, "eos_id": tokenizer.eos_id, "vocab_size": stepper.vocab_size}
    write_json(
        folder / "signature.json",
        {
            "batch": flags.batch,
            "length": flags.length,
            "room": flags.room,
            "platforms": platforms or [jax.default_backend()],
            "jax": jax.__version__,
            **ids,
            "weights": {name: item.dtype.name for name, item in weights.items()},
            "prefill": "(weights, tokens int32 [batch, length] padded on the right, lengths int32 [batch])",
            "step": "(weights, tokens int32 [batch], cache)",
            "both return": "(logits float32 [batch, vocab_size], cache)",
        },
        indent=1,
    )
    (folder / "run.py").write_text(EXAMPLE, encoding="utf-8")
    return f"prefill and step for {flags.batch} rows of {flags.length} + {flags.room} tokens, as StableHLO"
