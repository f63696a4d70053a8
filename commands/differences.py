"""What a config may have otherwise than the folder of the run that it goes on with."""

from typing import Any

from transformer.config import idle_keys

FREE = (
    "train.",
    "evaluate.",
    "parallel.",
    "sample.",
    "generate.",
    "answer.",
    "data.cache_dir",
    "data.workers",
    "loss.chunk_size",
    "model.kernel",
    "model.scan_layers",
    "model.remat",
)
"""Keys, or beginnings of keys, with which a run may be resumed otherwise than it began: how long and how
often, where and in which pieces things are computed. What is computed stays the same."""

FIXED = ("train.batch_size",)
"""Keys among `FREE` that may not change after all."""

LOCATIONS = ("data.source", "data.validation_source")
"""Keys that say where the data are; what they are is compared by itself."""


def differences(config: Any, here: dict[str, Any], there: dict[str, Any], data_known: bool) -> str:
    """The keys in which a config, whose values are `here`, is not that of the folder, `there`, in one line;
    "" where it may go on. With `data_known` the data are compared by themselves, wherever they are now.

    Idle keys may differ: their defaults may have changed since. What is idle in one of two configs is so in
    both, or else a key differs that makes it so.
    """
    idle = {key for key, *_ in idle_keys(config)}
    keys = [key for key in here | there if here.get(key) != there.get(key)]
    keys = [key for key in keys if key not in idle and not _is_free(key)]
    if data_known:
        keys = [key for key in keys if key not in LOCATIONS or _kind(here[key]) != _kind(there[key])]
    shown = {key: [repr(each[key]) if key in each else "none" for each in (there, here)] for key in keys}
    return ", ".join(f"{key} {before} (here {now})" for key, (before, now) in shown.items())


def _is_free(key: str) -> bool:
    return key.startswith(FREE) and key not in FIXED


def _kind(source: str) -> str:
    return source.partition(":")[0]
