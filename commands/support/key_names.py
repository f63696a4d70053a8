"""The names of all config keys, read from the source of the config classes without importing it, so that a
misspelt key is answered before JAX is imported, which takes seconds."""

import difflib
import functools
import re
from collections.abc import Iterator

from experiments import EXPERIMENTS
from transformer import ROOT

BASE = "Bounded"
"""The class that all config classes derive from; it has no keys."""

CLASS = re.compile(r"^class (\w+)\(([^)]*)\):\n(.*?)(?=^\S|\Z)", re.MULTILINE | re.DOTALL)
FIELD = re.compile(r"^    (\w+): (?!ClassVar)(\w*)", re.MULTILINE)
OF_AN_EXPERIMENT = re.compile(r"^    Config(?:: .*)? = (\w+)$", re.MULTILINE)
DOCSTRING = re.compile(r'"""(?:.|\n)*?"""')


@functools.cache
def key_names() -> tuple[str, ...]:
    """The keys of all experiments in this repository: "model.d_model", ...

    Raises:
      LookupError: a config class has a base class that is not in the source.
    """
    classes: dict[str, tuple[list[str], dict[str, str]]] = {BASE: ([], {})}
    roots: list[str] = []
    for path in (path for folder in ("experiments", "transformer") for path in (ROOT / folder).rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if "Config" not in source:
            continue
        for name, bases, body in CLASS.findall(source):
            classes[name] = bases.split(", "), dict(FIELD.findall(DOCSTRING.sub("", body)))
        roots += OF_AN_EXPERIMENT.findall(source)

    def fields(name: str) -> dict[str, str]:
        bases, own = classes[name]
        return {key: kind for base in bases for key, kind in fields(base).items()} | own

    def names(cls: str, prefix: str = "") -> Iterator[str]:
        for key, kind in fields(cls).items():
            yield from names(kind, f"{prefix}{key}.") if kind in classes else (prefix + key,)

    return tuple(dict.fromkeys(name for root in roots for name in names(root)))


def may_be_key(name: str) -> bool:
    """Whether an experiment may have the key: a known one, a group, one of a mapping
    (`optimizer.arguments.b1`), or any key where a program has added an experiment or the source does not
    tell."""
    if not all(isinstance(experiment, str) for experiment in EXPERIMENTS.values()):
        return True
    try:
        keys = key_names()
    except LookupError:
        return True
    return any(f"{key}.".startswith(f"{name}.") or name.startswith(f"{key}.") for key in keys)


def nearest_keys(name: str) -> list[str]:
    """At most three keys that may be meant by a misspelt one: those with the same last part, else those whose
    words have these initials (`lr`), else those with the most similar last part."""
    last = name.rpartition(".")[2]
    ends: dict[str, list[str]] = {}
    for key in key_names():
        ends.setdefault(key.rpartition(".")[2], []).append(key)
    initials = [end for end in ends if "_" in end and last == "".join(word[:1] for word in end.split("_"))]
    near = [last] if last in ends else initials or difflib.get_close_matches(last, ends, n=2, cutoff=0.75)
    return difflib.get_close_matches(name, [key for end in near for key in ends[end]], n=3, cutoff=0)
