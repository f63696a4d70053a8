"""Writes a run's model as Hugging Face transformers loads it: config.json, safetensors and the tokenizer.

python launch.py --mode=export --workdir=runs/lm --to=models/lm
python launch.py --mode=export --workdir=runs/lm@200 --to=models/lm --family=llama --dtype=bfloat16

python launch.py --mode=export --workdir=runs/lm --to=models/lm-gguf --format=gguf

python launch.py --mode=export --workdir=runs/lm --to=models/lm-hlo --format=stablehlo --length=64 --room=64

python launch.py --mode=export --workdir=runs/tuned --to=adapters/lm --format=peft --base=models/lm

LoRA adapters are merged into the weights, or with --format=peft written alone, as PEFT loads them. A model
with a part that no family has is refused. As StableHLO any model that generates is two programs of fixed
shapes, which jax runs without this library. A run that embeds texts is written as sentence-transformers loads
it.
"""

import argparse
import functools
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commands import add_step, place
from transformer.errors import UserError
from workdir.outputs import check_new, new_folder

if TYPE_CHECKING:
    from workdir.opening import Overrides

SHARD_GB = 5.0
"""The largest file of tensors, as transformers writes them."""

SHAPES = (("batch", 1, "rows"), ("length", 64, "tokens of a prompt, padded"), ("room", 64, "new tokens"))
"""Flags of the shapes of exported programs, their defaults and meanings."""


def add_flags(parser: Any) -> None:
    """The flags of this command."""
    parser.set_defaults(alone=True)
    add_step(parser)
    parser.add_argument("--to", type=place, help="the new folder")
    parser.add_argument(
        "--family", default="", help="gpt2, llama, ...; by default the first that has its parts"
    )
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="type of the tensors (float32)"
    )
    parser.add_argument("--shard_gb", type=float, default=SHARD_GB, help="GB of the largest file (5)")
    formats = (
        "transformers, peft: LoRA adapters alone, gguf: a file for llama.cpp, or stablehlo: programs of "
        "jax.export (transformers)"
    )
    kinds = ("transformers", "peft", "gguf", "stablehlo")
    parser.add_argument("--format", choices=kinds, default="transformers", help=formats)
    parser.add_argument(
        "--base", type=place, default="", help="peft: folder of the model (that of initialize_from=hf:)"
    )
    for name, default, meaning in SHAPES:
        parser.add_argument(f"--{name}", type=int, default=default, help=f"stablehlo: {meaning} ({default})")
    parser.add_argument("--platforms", default="", help="stablehlo: cpu,cuda,rocm,tpu (the one it runs on)")


def run(flags: argparse.Namespace, overrides: "Overrides") -> int:
    """Writes the new folder at once; returns the exit code."""
    from workdir.opening import chosen, reopen_run

    if not flags.to:
        raise UserError("--to: which new folder? models/lm, say (--mode=export)")
    if not 0 < flags.shard_gb * 1e9 < math.inf:
        raise UserError(f"--shard_gb: {flags.shard_gb}; expected the gigabytes of a file, above 0")
    target = Path(flags.to)
    check_new("--to", target)
    write: Any = _write
    if flags.format == "gguf":
        from commands.exporters import gguf_file

        gguf_file.check(flags)
        write = gguf_file.write
    elif flags.format == "peft":
        from commands.exporters import peft_adapter

        write = functools.partial(peft_adapter.write, tokenizer=_tokenizer)
    elif flags.format == "stablehlo":
        from commands.exporters import stablehlo

        stablehlo.check(flags)
        write = stablehlo.write
    opened = reopen_run(flags.workdir, overrides)
    step = chosen(opened, flags.workdir, flags.step)
    with new_folder("--to", target) as new:
        line = write(opened, step, new, flags)
    print(f"{target}: {line}")
    return 0


def _write(opened: Any, step: Any, part: Path, flags: argparse.Namespace) -> str:
    """Writes all files into the new folder `part`; returns a line on them."""
    part.mkdir(parents=True)
    params = opened.restore_params(step)
    family, by_name = write_model(opened, params, part, flags.family, flags.dtype, flags.shard_gb)
    size = sum(math.prod(place.shape) for place in by_name.values())
    return f"{size:,} parameters as {family.model_type}"


def write_model(
    opened: Any, params: Any, part: Path, name: str = "", dtype: str = "float32", shard_gb: float = SHARD_GB
) -> tuple[Any, dict[str, Any]]:
    """Writes all files of a run's model, with these parameters, into the folder `part`; returns its family,
    `name` or the first, and the places of its tensors by their names."""
    from commands.exporters.named_tensors import tensors_of
    from transformer.interop.generation_config import generation_of
    from transformer.interop.hub_folder import CONFIG, GENERATION_CONFIG, PIXELS, label_fields
    from transformer.interop.sentence_modules import write_modules
    from transformer.interop.tensors import write_tensors
    from workdir.folder import write_json

    config, model = opened.config, opened.experiment.config.model
    family, values, by_name, outputs = tensors_of(opened, params, name, dtype)
    vocab_size = opened.experiment.model.vocab_size
    values |= {"dtype": dtype, "torch_dtype": dtype}
    if family.labelled:
        values |= label_fields(opened.experiment.data.labels)
    if family.write_pixels:
        write_json(part / PIXELS, family.write_pixels(model, config.data), indent=2)
    else:
        values = _tokenizer(part, opened.experiment, values, family.paired) | {"vocab_size": vocab_size}
    if family.heads:
        write_modules(part, model, config.data.longest)
    write_tensors(part, outputs, int(shard_gb * 1e9))
    write_json(part / CONFIG, values, indent=2)
    if generation := generation_of(config, opened.experiment.data.tokenizer, values):
        write_json(part / GENERATION_CONFIG, generation, indent=2)
    return family, by_name


def _tokenizer(part: Path, experiment: Any, values: dict[str, Any], paired: bool) -> dict[str, Any]:
    """Writes the tokenizer; returns the values with the ids of special tokens."""
    from transformer.interop.vocabulary import write_tokenizer
    from transformer.interop.wordpiece import write_encoder_tokenizer

    tokenizer, model = experiment.data.tokenizer, experiment.config.model
    special = experiment.data.special_tokens
    if special is None:
        answers = "generate" in vars(experiment.config)
        kind = {"paired": paired, "answers": answers, "model_type": values["model_type"]}
        kind |= {"first": experiment.config.data.first_token} if paired else {}
        ids = write_tokenizer(part, tokenizer, model.max_length, **kind)
        ends = [*dict.fromkeys([tokenizer.eos_id, *experiment.ends])]
        return ids | ({"eos_token_id": ends} if len(ends) > 1 else {}) | values
    several = model.num_token_types > 1
    ids = write_encoder_tokenizer(part, tokenizer, special, model.max_length, types=several)
    first, expected = (hf_config.get("pad_token_id", -1) + 1 for hf_config in (values, ids))
    if first not in (0, expected):
        why = "positions of such models start after the id of padding of the tokenizer"
        raise UserError(f"model.position_offset: {first}; expected {expected}: {why}")
    return ids | values
