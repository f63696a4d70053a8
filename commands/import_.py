"""Makes the folder of a run from a model of Hugging Face transformers: config, tokenizer and one checkpoint.

python launch.py --mode=import --from=models/gpt2 --workdir=runs/gpt2
python launch.py --workdir=runs/gpt2 --mode=predict --prompt="Hello"

The model is a local folder with config.json, *.safetensors and the files of a tokenizer. To fine-tune it,
train with --config.initialize_from=runs/gpt2, or at once with --config.initialize_from=hf:models/gpt2.

python launch.py --mode=import --from=adapters/mine --base=models/gpt2 --workdir=runs/mine

A LoRA adapter of PEFT is merged into its model, or with --adapter=keep becomes a run that trains it.
An encoder without a head, such as one of sentence-transformers, becomes a run that embeds (--mode=embed).
"""

import argparse
import dataclasses
import math
import sys
from typing import TYPE_CHECKING, Any

from commands import NO_WORKDIR, place
from transformer.errors import UserError
from workdir.outputs import check_new, new_folder

if TYPE_CHECKING:
    from transformer.training.run import Run
    from workdir.opening import Overrides


def add_flags(parser: Any) -> None:
    """The flags of this command."""
    parser.set_defaults(missing=NO_WORKDIR, alone=True)
    parser.add_argument("--from", type=place, dest="source", help="the folder of the model")
    parser.add_argument("--base", type=place, default="", help="of an adapter of PEFT: its model's folder")
    choice = "of an adapter of PEFT: merge it into the weights, or keep it, to be trained on (merge)"
    parser.add_argument("--adapter", choices=("merge", "keep"), default="merge", help=choice)
    parser.add_argument(
        "--ignore",
        action="extend",
        type=lambda names: names.split(","),
        default=[],
        metavar="KEY",
        help="an unknown key of its config.json that is left out, as you know that it changes nothing",
    )


def run(flags: argparse.Namespace, overrides: "Overrides") -> int:
    """Reads and checks everything, and then puts the folder in place at once."""
    from experiments import find_experiment
    from transformer.run_folder import RunFolder
    from transformer.training.checkpoints.function import differences
    from transformer.training.run import Run
    from transformer.training.run_config import ANOTHER
    from workdir.opening import check_config
    from workdir.peft_hub import open_hub

    if not flags.source:
        raise UserError("--from: which folder? models/gpt2, say (--mode=import)")
    folder = RunFolder(flags.workdir)
    check_new("--workdir", folder.path)
    hub = open_hub(flags.source, flags.ignore, flags.base, keep=flags.adapter == "keep", alone=True)
    _ = hub.config  # before the overrides
    config = check_config(hub.values, overrides)
    experiment = find_experiment(config.experiment)(config, **hub.stored)
    _ = hub.places
    for difference in differences(config, hub.config):
        if difference.effect != "":
            raise UserError(
                f"--mode=import: {difference}, {ANOTHER}; set it in a run that starts from this one"
            )
    with new_folder("--workdir", folder.path) as new:
        _write(Run(experiment, config, new), hub)
    kind, size = (
        hub.folder.family.model_type,
        sum(math.prod(difference.shape) for difference in hub.places.values()),
    )
    print(f"{folder.path}: {size:,} parameters of {hub.folder.path} ({kind}), {len(hub.places):,} tensors")
    print(*(f"{line}\n" for line in hub.remarks), sep="", end="")
    if hub.writes and (unfollowed := hub.folder.generation.unfollowed):
        print(f"{hub.folder.generation_file}: {', '.join(unfollowed)} will not be followed", file=sys.stderr)
    return 0


def _write(imported: "Run", hub: Any) -> None:
    """Writes config, tokenizer and checkpoint."""
    import jax.numpy as jnp

    from transformer.config import to_values
    from transformer.training.state import State
    from workdir.folder import RunFolder, write_json

    params = hub.read(imported.abstract.params)
    first = State.create(params, imported.optimizer, ema=False)
    state = dataclasses.replace(first, step=jnp.ones((), jnp.int32))
    with imported.checkpoints(write=True) as checkpoints:
        checkpoints.save(1, state)
        checkpoints.wait()
    folder = RunFolder(imported.folder.path)
    if "tokenizer" in hub.stored:
        hub.stored["tokenizer"].save(folder.tokenizer)
    if hub.labels is not None:
        write_json(folder.labels, list(hub.labels))
    write_json(folder.config, to_values(imported.config), indent=2)
