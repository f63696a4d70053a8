"""Marian (Junczys-Dowmunt et al. 2018), as the OPUS-MT translation models have it."""

from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp

from transformer.errors import UserError
from transformer.interop.family import Family, Key, Values
from transformer.interop.harmless import GENERATION, words_of
from transformer.interop.tensor_parts import heads, joined, linear, norm, tied_output
from transformer.interop.tensor_rules import Rule

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu_exact",
    "gelu_new": "gelu",
    "silu": "silu",
    "swish": "silu",
}
"""Their activations -> ours."""


def rules(model: Any) -> Iterator[Rule]:
    """The tensors."""
    if model.share_embeddings:
        yield Rule("embedding/table", "model.shared.weight", "v d -> v d")
    else:
        yield Rule("source_embedding/table", "model.encoder.embed_tokens.weight", "v d -> v d")
        yield Rule("embedding/table", "model.decoder.embed_tokens.weight", "v d -> v d")
    for stack, parts in (("encoder", SUBLAYERS[:1]), ("decoder", SUBLAYERS)):
        blocks, layer = f"{stack}_blocks", f"model.{stack}.layers.{{n}}"
        for ours, theirs in parts:
            for name in ("query", "key", "value"):
                yield from heads(f"{blocks}/{ours}/{name}", f"{layer}.{theirs}.{name[0]}_proj")
            yield from joined(f"{blocks}/{ours}/output", f"{layer}.{theirs}.out_proj")
        for ours, theirs in (("up", "fc1"), ("down", "fc2")):
            yield from linear(f"{blocks}/feed_forward/{ours}", f"{layer}.{theirs}")
        for ours, theirs in (*parts, ("feed_forward", "final")):
            yield from norm(f"{blocks}/{ours}_norm", f"{layer}.{theirs}_layer_norm")
    yield Rule("output_bias", "final_logits_bias", "1 v -> v")
    if not model.tie_embeddings:
        yield Rule("unembedding/kernel", "lm_head.weight", "v d -> d v")


SUBLAYERS = ("attention", "self_attn"), ("cross_attention", "encoder_attn")
"""The attention of a block, ours and theirs."""

ALIKE = {
    "decoder_attention_heads": ("encoder_attention_heads", 16),
    "decoder_ffn_dim": ("encoder_ffn_dim", 4096),
    "decoder_vocab_size": ("vocab_size", 58101),
    "num_hidden_layers": ("encoder_layers", 12),
}
"""Their key -> that of the encoder, which has the same value here, and its default."""


def read(config: Values) -> dict[str, Any]:
    """The dropout of embeddings; raises `UserError` if the two stacks have other sizes."""
    for key, (same, default) in ALIKE.items():
        value, expected = config.get(key), config.get(same) or default
        # Without a value the numbers of heads and of hidden units are the defaults, not those of the encoder.
        follows = key in ("decoder_vocab_size", "num_hidden_layers")
        value = expected if follows and value is None else value or default
        if value != expected:
            raise UserError(f"{key}: {value!r} and {same}: {expected!r}; only equal ones are known here")
    rate = config.get("dropout")
    return dict.fromkeys(("dropout", "embedding_dropout"), 0.1 if rate is None else rate)


def write(model: Any) -> dict[str, Any]:
    """The sizes of the decoder, and the dropout."""
    sizes = {"decoder_attention_heads": model.num_heads, "decoder_ffn_dim": model.d_ff}
    return sizes | {"dropout": model.dropout, "forced_eos_token_id": None}


def computed(model: Any) -> dict[str, Callable[[tuple[int, ...]], Any]]:
    """The positions, of which older files hold a table for each stack."""

    def table(shape: tuple[int, ...]) -> Any:
        positions_1t = jnp.arange(max((1, *shape[:1])))[None]
        return model.positions().embed(jnp.zeros((*positions_1t.shape, model.d_model)), positions_1t)[0]

    return {f"model.{stack}.embed_positions.weight": table for stack in ("encoder", "decoder")}


def copies(model: Any) -> dict[str, str]:
    """The embeddings of each stack, and the output."""
    own = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
    return tied_output(model) | dict.fromkeys(own if model.share_embeddings else (), "embedding/table")


MARIAN = Family(
    model_type="marian",
    experiment="sequence_to_sequence",
    architecture="MarianMTModel",
    keys=(
        Key("vocab_size", "vocab_size", 58101),
        Key("max_length", "max_position_embeddings", 1024),
        Key("d_model", "d_model", 1024),
        Key("num_encoder_layers", "encoder_layers", 12, get=lambda model: model.encoder_layers),
        Key("num_layers", "decoder_layers", 12),
        Key("num_heads", "encoder_attention_heads", 16),
        Key("d_ff", "encoder_ffn_dim", 4096),
        Key("feed_forward", "activation_function", "gelu", ACTIVATIONS),
        Key("attention_dropout", "attention_dropout", 0.0),
        Key("scale_embeddings", "scale_embedding", False),
        Key("share_embeddings", "share_encoder_decoder_embeddings", True),
        Key("tie_embeddings", "tie_word_embeddings", True),
    ),
    fixed={
        "norm": "layer",
        "norm_placement": "post",
        "norm_epsilon": 1e-5,
        "position": "sinusoidal_halves",
        "use_bias": True,
        "output_bias": True,
    },
    assumed={
        "normalize_before": False,
        "normalize_embedding": False,
        "add_final_layer_norm": False,
        "static_position_embeddings": True,
    },
    silent=GENERATION
    | words_of(
        "activation_dropout classif_dropout classifier_dropout encoder_layerdrop decoder_layerdrop init_std "
        "add_bias_logits extra_pos_embeddings"
    ),
    read=read,
    write=write,
    further=("dropout", *ALIKE),
    rules=rules,
    computed=computed,
    copies=copies,
    paired=True,
)
