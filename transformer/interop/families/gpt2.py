"""GPT-2 (Radford et al. 2019)."""

from collections.abc import Iterator
from typing import Any

from transformer.interop.family import DECODERS, Family, Key
from transformer.interop.harmless import GENERATION, words_of
from transformer.interop.tensor_parts import affine, norm, tied_output
from transformer.interop.tensor_rules import Rule

GELU = {"gelu_new": "gelu", "gelu_pytorch_tanh": "gelu", "gelu": "gelu_exact", "relu": "relu"}
"""Their activations of a plain feed-forward -> ours."""


def rules(model: Any) -> Iterator[Rule]:
    """The tensors. Their kernels have the input first, as ours have."""
    yield Rule("embedding/table", "transformer.wte.weight", "v d -> v d")
    yield Rule("position/table", "transformer.wpe.weight")
    block = "transformer.h.{n}"
    inputs = tuple(f"blocks/attention/{name}" for name in ("query", "key", "value"))
    yield from affine(inputs, f"{block}.attn.c_attn", "d (c h k) -> c d h k", "(c h k) -> c h k")
    yield from affine("blocks/attention/output", f"{block}.attn.c_proj", "(h k) d -> h k d")
    for ours, theirs in (("up", "c_fc"), ("down", "c_proj")):
        yield from affine(f"blocks/feed_forward/{ours}", f"{block}.mlp.{theirs}", "")
    norms = {
        "blocks/attention_norm": f"{block}.ln_1",
        "blocks/feed_forward_norm": f"{block}.ln_2",
        "final_norm": "transformer.ln_f",
    }
    for ours, theirs in norms.items():
        yield from norm(ours, theirs)
    if not model.tie_embeddings:
        yield Rule("unembedding/kernel", "lm_head.weight", "v d -> d v")


GPT2 = Family(
    model_type="gpt2",
    experiment="language_modeling",
    also=DECODERS,
    architecture="GPT2LMHeadModel",
    keys=(
        Key("vocab_size", "vocab_size", 50257),
        Key("max_length", "n_positions", 1024),
        Key("d_model", "n_embd", 768),
        Key("num_layers", "n_layer", 12),
        Key("num_heads", "n_head", 12),
        Key("d_ff", "n_inner", lambda hf_config: 4 * hf_config.get("n_embd", 768)),
        Key("feed_forward", "activation_function", "gelu_new", GELU),
        Key("norm_epsilon", "layer_norm_epsilon", 1e-5),
        Key("dropout", "resid_pdrop", 0.1),
        Key("embedding_dropout", "embd_pdrop", 0.1),
        Key("attention_dropout", "attn_pdrop", 0.1),
        Key("tie_embeddings", "tie_word_embeddings", True),
    ),
    fixed={"norm": "layer", "position": "learned", "use_bias": True},
    assumed={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
    # The summary is of a classifier's head; upcasting is of lower precision only.
    silent=GENERATION
    | words_of(
        "n_ctx reorder_and_upcast_attn summary_type summary_use_proj summary_activation "
        "summary_first_dropout summary_proj_to_labels"
    ),
    rules=rules,
    prefix="transformer.",
    ignored=lambda model: (r"transformer\.h\.\d+\.attn\.(masked_)?bias",),  # the causal mask
    copies=tied_output,
)
