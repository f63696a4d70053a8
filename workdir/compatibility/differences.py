"""The differences between a config and that of the run that it resumes."""

from typing import Any

from transformer.config import idle_keys

FREE = (
    "train.",
    "evaluate.",
    "parallel.",
    "sample.",
    "generate.",
    "answer.",
    "deterministic",
    "data.cache_dir",
    "data.overlap",
    "data.workers",
    "loss.chunk_size",
    "loss.vocab_parts",
    "model.kernel",
    "model.scan_layers",
    "model.remat",
)
"""Prefixes of keys that may change when a run is resumed: they do not change what is computed, but how long,
how often, on which devices and in which parts."""

FIXED = ("train.batch_size", "train.until.")
"""Prefixes of exceptions from `FREE`, which may not change."""

LOCATIONS = ("data.source", "data.validation_source")
"""Keys that name the location of the data; their content is compared separately."""

SOURCES = "data.sources."
"""The prefix of the sources of a mixture: locations are the names of these keys."""


def differences(config: Any, new: dict[str, Any], stored: dict[str, Any], data_known: bool) -> str:
    """The keys in which a config, with the values `here`, conflicts with the folder's config, `there`, in one
    line; "" if the run may be resumed. With `data_known` the locations of the data may differ.

    Keys without effect (see `transformer.config.idle_keys`) may differ: their defaults may have changed. A
    key without effect in only one of two configs implies that another key differs.
    """
    if data_known:
        new, stored = _without_locations(new), _without_locations(stored)
    idle = {key for key, *_ in idle_keys(config)}
    keys = [key for key in new | stored if new.get(key) != stored.get(key)]
    keys = [key for key in keys if key not in idle and not _is_free(key)]
    if data_known:
        keys = [key for key in keys if key not in LOCATIONS or kind_of(new[key]) != kind_of(stored[key])]
    shown = {
        key: [repr(record[key]) if key in record else "none" for record in (stored, new)] for key in keys
    }
    return ", ".join(f"{key} {before} (here {now})" for key, (before, now) in shown.items())


def _is_free(key: str) -> bool:
    return key.startswith(FREE) and not key.startswith(FIXED)


def _without_locations(values: dict[str, Any]) -> dict[str, Any]:
    """The values with {kind: weight} of each source of a mixture instead of `data.sources`."""
    sources = sorted(key for key in values if key.startswith(SOURCES))
    numbered = {
        f"{SOURCES[:-1]}[{number}]": {kind_of(key.removeprefix(SOURCES)): values[key]}
        for number, key in enumerate(sources)
    }
    return {key: value for key, value in values.items() if key not in sources} | numbered


def kind_of(source: str) -> str:
    """ "text" of "text:GLOB", the kind of a source."""
    return source.partition(":")[0]
