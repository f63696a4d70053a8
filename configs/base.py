"""The start of every config file: all keys of an experiment with the defaults of its config dataclasses.

The dataclasses state the meaning of each key beside its default; `python launch.py --config=FILE --help=all`
lists them. A config file sets the keys that differ, `config.model.d_model = 192`; so does a flag,
`--config.model.d_model=192`. Lengths are in tokens, `batch_size` in sequences over all devices.
"""

from typing import Any

from ml_collections import ConfigDict

from experiments import find_experiment
from transformer.config import with_defaults


class Group(ConfigDict):
    """A `ConfigDict` in which keys may have dots, as names of files do in `data.sources`."""

    def __init__(self, values: Any = None, **options: Any) -> None:
        groups = {
            key: Group(value) if isinstance(value, dict) else value for key, value in (values or {}).items()
        }
        super().__init__(groups, **options | {"allow_dotted_keys": True})


def defaults(experiment: str) -> ConfigDict:
    """All keys of an experiment, a name in `experiments.EXPERIMENTS`.

    Setting an unknown key raises AttributeError, except in groups that are empty by default and take any
    key, such as `config.optimizer.arguments`.
    """
    values = with_defaults(find_experiment(experiment).Config, {"experiment": experiment})
    config = Group(values).lock()
    _unlock_empty_groups(config)
    return config


def _unlock_empty_groups(config: ConfigDict) -> None:
    for value in config.values():
        if isinstance(value, ConfigDict):
            if len(value):
                _unlock_empty_groups(value)
            else:
                value.unlock()


def choose(config: ConfigDict, preset: str, presets: dict[str, dict]) -> ConfigDict:
    """`config` with the changes of the presets named after the colon of `--config=file:preset`, in order:
    `file:window,tiny`.

    Raises:
      ValueError: there is no such preset.
    """
    for name in preset.split(",") if preset else []:
        if name not in presets:
            raise ValueError(f"{name!r} is not a preset of it; it has {', '.join(presets)}")
        config.update(presets[name])
    return config


TINY_PAIRS: dict[str, dict] = {
    "model": {"d_model": 32, "num_layers": 1, "num_heads": 2, "d_ff": 64, "max_length": 96},
    "data": {
        "source": "written_forms",
        "source_field": "source",
        "target_field": "target",
        "validation_source": "",
        "tokenizer": "bytes",
        "vocab_size": 4096,
        "split_by": "",
        "source_length": 48,
        "target_length": 48,
    },
    "optimizer": {"warmup_steps": 1},
    "train": {"steps": 2, "batch_size": 8, "evaluate_every": 0, "evaluate_batches": 1, "checkpoint_every": 0},
    "generate": {"max_new_tokens": 8, "examples": 5},
}
"""Keys for smoke tests of any encoder-decoder: seconds of training on generated data."""
