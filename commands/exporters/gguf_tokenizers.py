"""Tokenizers as the GGUF format has them."""

import json
from collections.abc import Iterator
from typing import Any

from transformer.errors import UserError

SPLIT = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
"""The rule by which GPT-2 cuts a text into words; llama.cpp calls it "gpt-2"."""

WORDS = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "lowercase": True}
"""The normaliser that llama.cpp applies to a text of BERT; it strips accents too."""

SPECIAL = ("bos", "eos", "pad", "unk", "sep", "mask")


def fields(experiment: Any, vocab_size: int) -> list[tuple[str, Any]]:
    """`add_...` of the writer and its values, of the tokenizer of a run.

    Raises:
      UserError: the format does not name such a tokenizer.
    """
    tokenizer, special_tokens = experiment.data.tokenizer, experiment.data.special_tokens
    content = json.loads(tokenizer.content)
    model, split = content["model"], content["pre_tokenizer"] or {}
    of_bytes = all(split.get(key) == value for key, value in SPLIT.items()) and model["type"] == "BPE"
    of_words = model["type"] == "WordPiece" and split.get("type") == "BertPreTokenizer"
    if of_bytes and not content["normalizer"]:
        own = _of_bytes(tokenizer, content)
    elif of_words and special_tokens and _is_uncased(content):
        own = _of_words(content)
    else:
        raise UserError(
            "--format=gguf: data.tokenizer: expected byte-level BPE that cuts words as GPT-2 does ('bpe') or "
            "the words of an uncased BERT: the format has a name for each way to cut, and none for this one"
        )
    names = _names(content) | (_encoder_names(special_tokens) if special_tokens else {})
    texts = [names.get(i, (f"[PAD{i}]", "UNUSED")) for i in range(vocab_size)]
    return [*own, *_tokens(texts, of_words), *_ends(experiment)]


def _of_bytes(tokenizer: Any, content: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "tokenizer_model", "gpt2"
    yield "tokenizer_pre", "gpt-2"
    merges = content["model"]["merges"]
    yield "token_merges", [item if isinstance(item, str) else " ".join(item) for item in merges]
    yield from [("chat_template", tokenizer.chat_template)] if tokenizer.chat_template else []


def _of_words(content: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "tokenizer_model", "bert"
    yield "tokenizer_pre", "default"
    yield "unk_token_id", content["model"]["vocab"][content["model"]["unk_token"]]


def _is_uncased(content: dict[str, Any]) -> bool:
    normalizer, model = content["normalizer"] or {}, content["model"]
    plain = all(normalizer.get(key) == value for key, value in WORDS.items())
    return plain and normalizer.get("strip_accents") is not False and model["unk_token"] in model["vocab"]


def _names(content: dict[str, Any]) -> dict[int, tuple[str, str]]:
    """Id -> text and kind of each token of a tokenizer."""
    names = {i: (text, "NORMAL") for text, i in content["model"]["vocab"].items()}
    for item in content["added_tokens"]:
        names[item["id"]] = (item["content"], "CONTROL" if item["special"] else "USER_DEFINED")
    return names


def _encoder_names(special_tokens: Any) -> dict[int, tuple[str, str]]:
    ids = (special_tokens.cls, special_tokens.sep, special_tokens.mask)
    return {i: (special_tokens.name(i), "CONTROL") for i in ids}


def _tokens(texts: list[tuple[str, str]], of_words: bool) -> Iterator[tuple[str, Any]]:
    import gguf

    def written(text: str, kind: str) -> str:
        """BERT's words begin with a mark there, and what continues one with none."""
        if not of_words or kind != "NORMAL":
            return text
        return text.removeprefix("##") if text.startswith("##") else f"\u2581{text}"

    yield "token_list", [written(text, kind) for text, kind in texts]
    yield "token_types", [getattr(gguf.TokenType, kind) for _, kind in texts]


def _ends(experiment: Any) -> Iterator[tuple[str, Any]]:
    """The ids of special tokens, and which of them are around a text."""
    tokenizer, special_tokens = experiment.data.tokenizer, experiment.data.special_tokens
    if special_tokens:
        yield "bos_token_id", special_tokens.cls
        yield "eos_token_id", special_tokens.sep
        yield "sep_token_id", special_tokens.sep
        yield "mask_token_id", special_tokens.mask
        yield "add_bos_token", True
        yield "add_eos_token", True
    else:
        yield "bos_token_id", tokenizer.bos_id
        yield "eos_token_id", tokenizer.eos_id
        # The format has one further token that ends a completion.
        yield from [("eot_token_id", end) for end in experiment.ends if end != tokenizer.eos_id][:1]
        yield "add_bos_token", True
    yield "pad_token_id", tokenizer.pad_id
