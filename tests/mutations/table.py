"""All mutations of the library, and which tests should catch each."""

from dataclasses import dataclass
from pathlib import Path

from tests.mutations import (
    attention,
    cluster,
    commands,
    data,
    decoding,
    evaluation,
    interop,
    interpret,
    layers,
    models,
    planning,
    policy,
    sources,
    states,
    training,
)

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Mutation:
    """The text `find`, which occurs once in a file, becomes `replacement`; `tests` should fail."""

    name: str
    file: str
    find: str
    replacement: str
    tests: tuple[str, ...]


def _all() -> list[Mutation]:
    found = []
    for part in (
        attention,
        layers,
        states,
        models,
        decoding,
        training,
        data,
        sources,
        evaluation,
        policy,
        planning,
        commands,
        cluster,
        interop,
        interpret,
    ):
        for file, (tests, edits) in part.EDITS.items():
            for name, edit in edits.items():
                place = file.removeprefix("transformer/").removesuffix(".py")
                found.append(Mutation(f"{place}/{name}", file, *edit, tuple(tests.split())))
    return found


MUTATIONS = _all()
