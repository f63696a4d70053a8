"""Arcee (AFM-4.5B): Llama with a feed-forward sublayer that has no gate."""

import functools

from transformer.interop.attention_keys import ROPE
from transformer.interop.families.llama import (
    FIXED,
    ROPES,
    SIZES,
    TIED,
    decoder,
    default_head_width,
    head_keys,
    read,
    rules,
    same_as_query_heads,
    write,
)
from transformer.interop.family import Key

PLAIN = {
    **{"relu2": "relu2", "gelu_pytorch_tanh": "gelu", "gelu_new": "gelu", "gelu": "gelu_exact"},
    **{"relu": "relu", "silu": "silu"},
}
"""Their `hidden_act` -> our `feed_forward`."""

ARCEE = decoder(
    model_type="arcee",
    architecture="ArceeForCausalLM",
    rules=functools.partial(rules, projections=("up", "down")),
    keys=(
        *SIZES,
        *head_keys(same_as_query_heads, default_head_width),
        Key("feed_forward", "hidden_act", "relu2", PLAIN),
        TIED,
    ),
    fixed=FIXED,
    assumed={"attention_bias": False, "mlp_bias": False},
    read=read,
    write=write,
    further=ROPES,
    written=ROPE,
)
