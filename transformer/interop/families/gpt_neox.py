"""GPT-NeoX (Black et al. 2022): the Pythia models (Biderman et al. 2023)."""

from collections.abc import Iterator
from typing import Any

from transformer.interop.attention_keys import ROPE, read_partial_rope, write_partial_rope
from transformer.interop.families.gpt2 import GELU
from transformer.interop.family import DECODERS, Family, Key, Values, positive_number, value_or
from transformer.interop.harmless import GENERATION
from transformer.interop.tensor_parts import heads, joined, linear, norm
from transformer.interop.tensor_rules import Rule


def rules(model: Any) -> Iterator[Rule]:
    """The tensors. Queries, keys and values of a head lie beside each other."""
    yield Rule("embedding/table", "gpt_neox.embed_in.weight", "v d -> v d")
    ours, theirs = "blocks", "gpt_neox.layers.{n}"
    inputs = tuple(f"{ours}/attention/{name}" for name in ("query", "key", "value"))
    fused = f"{theirs}.attention.query_key_value"
    yield from heads(inputs, fused, in_turn=True, turns=model.num_heads)
    yield from joined(f"{ours}/attention/output", f"{theirs}.attention.dense")
    yield from linear(f"{ours}/feed_forward/up", f"{theirs}.mlp.dense_h_to_4h")
    yield from linear(f"{ours}/feed_forward/down", f"{theirs}.mlp.dense_4h_to_h")
    yield from norm(f"{ours}/attention_norm", f"{theirs}.input_layernorm")
    yield from norm(f"{ours}/feed_forward_norm", f"{theirs}.post_attention_layernorm")
    yield from norm("final_norm", "gpt_neox.final_layer_norm")
    if not model.tie_embeddings:
        yield Rule("unembedding/kernel", "embed_out.weight", "v d -> d v")


def read(config: Values) -> dict[str, Any]:
    """Rotary positions in a part of each head, and the dropout of embeddings."""
    theta = positive_number(config, "rotary_emb_base", 10_000.0)
    keys = read_partial_rope(config, theta, "rotary_pct")
    return keys | {"embedding_dropout": value_or(config, "hidden_dropout", 0.0)}


def write(model: Any) -> dict[str, Any]:
    """The reverse of `read`."""
    return write_partial_rope(model, "rotary_emb_base", "rotary_pct")


GPT_NEOX = Family(
    model_type="gpt_neox",
    experiment="language_modeling",
    also=DECODERS,
    architecture="GPTNeoXForCausalLM",
    keys=(
        Key("vocab_size", "vocab_size", 50432),
        Key("max_length", "max_position_embeddings", 2048),
        Key("d_model", "hidden_size", 6144),
        Key("num_layers", "num_hidden_layers", 44),
        Key("num_heads", "num_attention_heads", 64),
        Key("d_ff", "intermediate_size", 24576),
        Key("feed_forward", "hidden_act", "gelu", GELU | {"gelu_fast": "gelu"}),
        Key("norm_epsilon", "layer_norm_eps", 1e-5),
        Key("dropout", "hidden_dropout", 0.0),
        Key("attention_dropout", "attention_dropout", 0.0),
        Key("parallel_sublayers", "use_parallel_residual", True),
        Key("parallel_norms", "use_parallel_residual", True),
        Key("tie_embeddings", "tie_word_embeddings", False),
    ),
    fixed={"norm": "layer", "position": "rope", "use_bias": True},
    assumed={"attention_bias": True},
    silent=GENERATION | {"classifier_dropout"},
    read=read,
    write=write,
    further=("rotary_pct", "rotary_emb_base", "rope_scaling", "rope_parameters"),
    written=(*ROPE, "position_fraction", "embedding_dropout"),
    rules=rules,
    prefix="gpt_neox.",
    renamed=((r"^lm_head\.", "embed_out."),),
    # The causal mask, and frequencies of rotary positions.
    ignored=lambda model: (r"gpt_neox\.layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",),
    copies=lambda model: {"embed_out.weight": "embedding/table"} if model.tie_embeddings else {},
)
