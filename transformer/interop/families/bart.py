"""BART (Lewis et al. 2020): Marian with learned positions and a norm of the embeddings."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from transformer.errors import UserError
from transformer.interop.families import marian
from transformer.interop.families.marian import MARIAN
from transformer.interop.family import Key, Values, no_keys
from transformer.interop.harmless import words_of
from transformer.interop.tensor_parts import norm
from transformer.interop.tensor_rules import Rule

OFFSET = 2
"""The row of the first token in a table of positions."""

STACKS = (("source_", "encoder"), ("", "decoder"))
"""The beginning of our names of a stack's embeddings, and their name of the stack."""


def rules(model: Any) -> Iterator[Rule]:
    """The tensors: those of Marian, and of each stack a table of positions and a norm."""
    yield from marian.rules(model)
    for ours, theirs in STACKS:
        yield Rule(f"{ours}position/table", f"model.{theirs}.embed_positions.weight")
        yield from norm(f"{ours}embedding_norm", f"model.{theirs}.layernorm_embedding")


def write(model: Any) -> dict[str, Any]:
    """`marian.write`; raises `UserError` for positions that start elsewhere."""
    if model.position_offset != OFFSET:
        raise UserError(f"model.position_offset: {model.position_offset}; such models have {OFFSET}")
    return marian.write(model)


def read(config: Values) -> dict[str, Any]:
    """`marian.read`, with the first row of positions."""
    return marian.read({"vocab_size": 50265, **config}) | {"position_offset": OFFSET}


BART = dataclasses.replace(
    MARIAN,
    model_type="bart",
    architecture="BartForConditionalGeneration",
    keys=(
        Key("vocab_size", "vocab_size", 50265),
        *(key for key in MARIAN.keys if key.ours not in ("vocab_size", "share_embeddings", "tie_embeddings")),
    ),
    fixed=MARIAN.fixed | {"position": "learned", "embedding_norm": True},  # type: ignore[operator]
    assumed={
        "normalize_before": False,
        "normalize_embedding": True,
        "add_final_layer_norm": False,
        "static_position_embeddings": False,
        "tie_word_embeddings": True,
    },
    # Whether a text begins with a given token is a setting of generation.
    silent=MARIAN.silent | words_of("forced_bos_token_id force_bos_token_to_be_generated"),
    read=read,
    write=write,
    written=("position_offset",),
    rules=rules,
    computed=no_keys,
)
