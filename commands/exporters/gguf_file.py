"""Writes a run's model as a GGUF file, which llama.cpp reads, for `--mode=export --format=gguf`.

It needs the library of that format: pip install '.[gguf]'.
"""

import argparse
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.errors import UserError

FILE = "model.gguf"


@dataclasses.dataclass(frozen=True)
class Architecture:
    """An architecture of llama.cpp.

    `sizes` are `add_...` of the writer -> their key of config.json; `expected` the values of keys that the
    format does not have; `changed` a tensor (name, array, values of config.json) as the format has it.
    """

    name: str
    sizes: Mapping[str, str]
    expected: Mapping[str, Any]
    changed: Callable[[str, np.ndarray, dict[str, Any]], np.ndarray] = lambda name, x, values: x


def permuted(name: str, x: np.ndarray, values: dict[str, Any]) -> np.ndarray:
    """A tensor with the rows of queries and keys in the order in which llama.cpp rotates them: of each head
    i and i + k / 2 beside each other."""
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(name.split(".")[-2])
    if not heads:
        return x
    return x.reshape(values[heads], 2, -1, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def transposed(name: str, x: np.ndarray, values: dict[str, Any]) -> np.ndarray:
    """A kernel of GPT-2, (inputs, outputs) there, as (outputs, inputs); embeddings stay."""
    return x.T if x.ndim == 2 and ".h." in name else x


LLAMA = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "head_count": "num_attention_heads",
    "head_count_kv": "num_key_value_heads",
    "layer_norm_rms_eps": "rms_norm_eps",
    "key_length": "head_dim",
    "value_length": "head_dim",
    "rope_dimension_count": "head_dim",
    "rope_freq_base": "rope_theta",
}
GPT2 = {
    "context_length": "n_positions",
    "embedding_length": "n_embd",
    "block_count": "n_layer",
    "feed_forward_length": "n_inner",
    "head_count": "n_head",
    "layer_norm_eps": "layer_norm_epsilon",
}
PLAIN = {"hidden_act": "silu", "rope_scaling": None, "sliding_window": None}

ARCHITECTURES = {
    "llama": Architecture("llama", LLAMA, PLAIN, permuted),
    "mistral": Architecture("llama", LLAMA, PLAIN, permuted),
    "qwen2": Architecture("qwen2", LLAMA, PLAIN),
    "qwen3": Architecture("qwen3", LLAMA, PLAIN),
    "gpt2": Architecture("gpt2", GPT2, {"activation_function": "gelu_new"}, transposed),
}
"""Family -> architecture of GGUF."""

SPLIT = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
"""The rule by which GPT-2 cuts a text into words; llama.cpp calls it "gpt-2"."""


def check(flags: argparse.Namespace) -> None:
    """Raises `UserError` if the library is not there."""
    try:
        import gguf  # noqa: F401
    except ImportError:
        raise UserError("--format=gguf: the library gguf is not installed: pip install '.[gguf]'") from None


def write(opened: Any, step: Any, part: Path, flags: argparse.Namespace) -> str:
    """Writes the file into the new folder `part`, one tensor at a time; returns a line on it.

    Raises:
      UserError: the model is of no family of `ARCHITECTURES`, or has windows, scaled positions, another
        activation, or a tokenizer that this format does not name.
    """
    import gguf

    from commands.exporters.named_tensors import tensors_of

    family, values, by_name, outputs = tensors_of(
        opened, opened.restore_params(step), flags.family, flags.dtype
    )
    check_values(family.model_type, values)
    ends = opened.experiment.ends
    tokens = _tokens(opened.experiment.data.tokenizer, opened.experiment.model.vocab_size, ends)
    part.mkdir(parents=True)
    architecture = ARCHITECTURES[family.model_type]
    writer: Any = gguf.GGUFWriter(part / FILE, architecture.name)
    writer.add_name(family.model_type)
    writer.add_vocab_size(opened.experiment.model.vocab_size)
    for name, key in architecture.sizes.items():
        getattr(writer, f"add_{name}")(values[key])
    for name, value in tokens:
        getattr(writer, f"add_{name}")(value)
    kinds = gguf.GGMLQuantizationType
    layers = values[architecture.sizes["block_count"]]
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, architecture.name.upper()), layers)
    wide = kinds.BF16 if flags.dtype == "bfloat16" else kinds.F32
    writer.add_file_type(int(getattr(gguf.LlamaFileType, "ALL_F32" if wide is kinds.F32 else "MOSTLY_BF16")))
    for place in by_name.values():
        theirs = names.get_name(place.name, try_suffixes=(".weight", ".bias"))
        kind = wide if len(place.shape) > 1 else kinds.F32  # vectors are float32 there
        size = int(np.prod(place.shape)) * (4 if kind is kinds.F32 else 2)
        shape = architecture.changed(place.name, np.empty(place.shape, np.int8), values).shape
        writer.add_tensor_info(theirs, shape, np.dtype(np.float32), size, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for output in outputs:
        x = architecture.changed(output.name, output.read(), values)
        writer.write_tensor_data(np.ascontiguousarray(x if x.ndim > 1 else x.astype(np.float32)))
    writer.close()
    size = sum(int(np.prod(place.shape)) for place in by_name.values())
    return f"{size:,} parameters as {FILE} ({architecture.name})"


def check_values(family: str, values: dict[str, Any]) -> None:
    """Refuses what the format has no key for, or what the names of its architectures do not say."""
    if family not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise UserError(f"--format=gguf: this model is exported as {family!r}; expected one of {known}")
    for key, expected in ARCHITECTURES[family].expected.items():
        if values.get(key) not in (expected, None):
            raise UserError(f"--format=gguf: {key}: {values[key]!r}; expected {expected!r}")


def _tokens(tokenizer: Tokenizer, vocab_size: int, ends: Sequence[int]) -> Iterator[tuple[str, Any]]:
    """`add_...` of the writer and its values, of a tokenizer as that of GPT-2; `ends` are the tokens that end
    a completion, of which the format has one apart from the tokenizer's.

    Raises:
      UserError: it is another kind of tokenizer.
    """
    import gguf

    content = json.loads(tokenizer.content)
    model, split = content["model"], content["pre_tokenizer"] or {}
    known = all(split.get(key) == value for key, value in SPLIT.items()) and model["type"] == "BPE"
    if not known or content["normalizer"]:
        raise UserError(
            "--format=gguf: data.tokenizer: expected byte-level BPE that cuts words as GPT-2 does ('bpe'): "
            "the format has a name for each way to cut, and none for this one"
        )
    kinds, added = gguf.TokenType, {item["id"]: item["special"] for item in content["added_tokens"]}
    texts = {i: text for text, i in model["vocab"].items()}
    texts |= {item["id"]: item["content"] for item in content["added_tokens"]}
    special = {True: kinds.CONTROL, False: kinds.USER_DEFINED, None: kinds.NORMAL}
    yield "tokenizer_model", "gpt2"
    yield "tokenizer_pre", "gpt-2"
    yield "token_list", [texts.get(i, f"[PAD{i}]") for i in range(vocab_size)]
    yield "token_types", [special[added.get(i)] if i in texts else kinds.UNUSED for i in range(vocab_size)]
    yield "token_merges", [item if isinstance(item, str) else " ".join(item) for item in model["merges"]]
    yield "bos_token_id", tokenizer.bos_id
    yield "eos_token_id", tokenizer.eos_id
    yield "pad_token_id", tokenizer.pad_id
    yield from [("eot_token_id", end) for end in ends if end != tokenizer.eos_id][:1]
    yield from [("chat_template", tokenizer.chat_template)] if tokenizer.chat_template else []
    yield "add_bos_token", True
