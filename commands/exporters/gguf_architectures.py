"""The architectures of llama.cpp as which models are written, by the family of a model."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from transformer.errors import UserError

Values = dict[str, Any]
"""The keys of a model's config.json."""

Sizes = Mapping[str, str | Callable[[Values], Any]]
"""`add_...` of the writer -> the key of config.json that it writes, or a function of these keys."""


def same(name: str, x: np.ndarray, values: Values) -> np.ndarray:
    """The tensor unchanged."""
    return x


def nothing(values: Values) -> str:
    """No problem."""
    return ""


@dataclasses.dataclass(frozen=True)
class Architecture:
    """An architecture of llama.cpp.

    A size of `sizes` that is None is not written. `expected` are the values of keys that the format lacks,
    and `problem` says what else of the keys it lacks, or "". `changed` is a tensor (name, array, values of
    config.json) as the format has it. `prefix` is what names of tensors start with there and not in the
    format, and tensors whose names start with one of `heads` are left out.
    """

    name: str
    sizes: Sizes
    expected: Mapping[str, Any]
    changed: Callable[[str, np.ndarray, Values], np.ndarray] = same
    problem: Callable[[Values], str] = nothing
    prefix: str = ""
    heads: tuple[str, ...] = ()

    def size(self, name: str, values: Values) -> Any:
        """The value of `add_<name>`; None if it is not written."""
        key = self.sizes[name]
        return key(values) if callable(key) else values[key]

    def check(self, values: Values) -> None:
        """Raises `UserError` for keys that the format does not have."""
        for key, expected in self.expected.items():
            if values.get(key) not in (expected, None):
                raise UserError(f"--format=gguf: {key}: {values[key]!r}; expected {expected!r}")
        if problem := self.problem(values):
            raise UserError(f"--format=gguf: {problem}")


def permuted(name: str, x: np.ndarray, values: Values) -> np.ndarray:
    """A tensor with the rows of queries and keys in the order in which llama.cpp rotates them: of each head
    i and i + k / 2 beside each other."""
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(name.split(".")[-2])
    if not heads:
        return x
    return x.reshape(values[heads], 2, -1, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def transposed(name: str, x: np.ndarray, values: Values) -> np.ndarray:
    """A kernel of GPT-2, (inputs, outputs) there, as (outputs, inputs); embeddings stay."""
    return x.T if x.ndim == 2 and ".h." in name else x


def from_one(name: str, x: np.ndarray, values: Values) -> np.ndarray:
    """A tensor of Gemma: scales of norms are written as they are, not less 1."""
    return x + 1 if name.endswith("norm.weight") else x


SLIDING, FULL = "sliding_attention", "full_attention"


def gemma_problem(every: int) -> Callable[[Values], str]:
    """A function of config.json that returns why llama.cpp cannot run a Gemma, or "". There the last of
    `every` layers in turn has no window."""

    def problem(values: Values) -> str:
        types, scalar = values["layer_types"], values["query_pre_attn_scalar"]
        if types != [FULL if (i + 1) % every == 0 else SLIDING for i in range(len(types))]:
            return f"layer_types: {', '.join(types)}; expected windows but in one layer of {every}, its last"
        # Of the largest model it takes another scale, and knows that by the number of layers.
        if scalar != values["head_dim"] or len(types) == {2: 46, 6: 62}[every]:
            return f"query_pre_attn_scalar: {scalar!r} of {len(types)} layers; expected head_dim"
        return ""

    return problem


def gemma2_problem(values: Values) -> str:
    """Returns why llama.cpp cannot run a Gemma 2, or "": scores or logits without a cap."""
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if values[key] is None:
            return f"{key}: None; expected a number, as llama.cpp caps them always"
    if values["rope_scaling"]["rope_type"] != "default":
        return f"rope_scaling: {values['rope_scaling']!r}; expected 'default'"
    return gemma_problem(2)(values)


def gemma3_problem(values: Values) -> str:
    """Returns why llama.cpp cannot run a Gemma 3, or "": positions that are scaled, but for `linear`."""
    for kind, rope in values["rope_parameters"].items():
        if rope.get("rope_type", "default") not in ({FULL: ("default", "linear")}.get(kind, ("default",))):
            return f"rope_parameters: {kind}: {rope['rope_type']!r}; expected 'default', or of full 'linear'"
    return gemma_problem(6)(values)


def bert_problem(values: Values) -> str:
    """Returns why llama.cpp cannot run a BERT, or "": another activation than GELU, which it approximates."""
    if values["hidden_act"] not in ("gelu", "gelu_new", "gelu_pytorch_tanh"):
        return f"hidden_act: {values['hidden_act']!r}; expected 'gelu' or 'gelu_new'"
    return ""


def modernbert_problem(values: Values) -> str:
    """Returns why llama.cpp cannot run a ModernBERT, or "": biases, and windows in other layers."""
    types = values["layer_types"]
    if values["norm_bias"]:
        return "norm_bias: True; expected False"
    if types != [SLIDING if i % 3 else FULL for i in range(len(types))]:
        return (
            f"layer_types: {', '.join(types)}; expected a window in all layers but each third from the first"
        )
    return ""


def base_of(kind: str) -> Callable[[Values], float | None]:
    """The base of rotary positions of a kind of layers; None if there are none."""
    return lambda values: values["rope_parameters"].get(kind, {}).get("rope_theta")


def linear_factor(values: Values) -> float | None:
    """The factor by which positions are divided in layers without a window; None if they are not."""
    return values["rope_parameters"].get(FULL, {}).get("factor")


BASIC: Sizes = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "head_count": "num_attention_heads",
}
DECODER: Sizes = {
    **BASIC,
    "head_count_kv": "num_key_value_heads",
    "layer_norm_rms_eps": "rms_norm_eps",
    "key_length": "head_dim",
    "value_length": "head_dim",
    "rope_dimension_count": "head_dim",
}
LLAMA: Sizes = {**DECODER, "rope_freq_base": "rope_theta"}
GPT2: Sizes = {
    "context_length": "n_positions",
    "embedding_length": "n_embd",
    "block_count": "n_layer",
    "feed_forward_length": "n_inner",
    "head_count": "n_head",
    "layer_norm_eps": "layer_norm_epsilon",
}
GEMMA2: Sizes = {
    **LLAMA,
    "sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
GEMMA3: Sizes = {
    **DECODER,
    "sliding_window": "sliding_window",
    "final_logit_softcapping": "final_logit_softcapping",
    "rope_freq_base": base_of(FULL),
    "rope_freq_base_swa": base_of(SLIDING),
    "rope_scaling_type": lambda values: linear_type() if linear_factor(values) else None,
    "rope_scaling_factor": linear_factor,
}
BERT: Sizes = {
    **BASIC,
    "layer_norm_eps": "layer_norm_eps",
    "token_type_count": "type_vocab_size",
    "causal_attention": lambda values: False,
}
MODERNBERT: Sizes = {
    **BASIC,
    "layer_norm_eps": "norm_eps",
    "causal_attention": lambda values: False,
    "sliding_window": "local_attention",
    "rope_freq_base": base_of(FULL),
    "rope_freq_base_swa": base_of(SLIDING),
}
PLAIN = {"hidden_act": "silu", "rope_scaling": None, "sliding_window": None}
TANH = {"hidden_activation": "gelu_pytorch_tanh"}
HEADS = ("cls.", "pooler.", "head.", "decoder.")


def linear_type() -> Any:
    """The kind of rotary positions that are divided by a factor."""
    import gguf

    return gguf.RopeScalingType.LINEAR


ARCHITECTURES = {
    "llama": Architecture("llama", LLAMA, PLAIN, permuted),
    "mistral": Architecture("llama", LLAMA, PLAIN, permuted),
    "qwen2": Architecture("qwen2", LLAMA, PLAIN),
    "qwen3": Architecture("qwen3", LLAMA, PLAIN),
    "gpt2": Architecture("gpt2", GPT2, {"activation_function": "gelu_new"}, transposed),
    "gemma2": Architecture("gemma2", GEMMA2, TANH, from_one, gemma2_problem),
    "gemma3_text": Architecture("gemma3", GEMMA3, TANH, from_one, gemma3_problem),
    "bert": Architecture("bert", BERT, {}, problem=bert_problem, prefix="bert.", heads=HEADS),
    "modernbert": Architecture(
        "modern-bert",
        MODERNBERT,
        {"hidden_activation": "gelu"},
        problem=modernbert_problem,
        prefix="model.",
        heads=HEADS,
    ),
}
"""Family -> architecture of GGUF."""
