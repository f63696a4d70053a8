"""Tokenizers of encoders: vocab.txt of BERT, and the files of an exported one."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from transformer.data.tokenization.special_tokens import SpecialTokens, takes_space
from transformer.data.tokenization.tokenizer_settings import SETTINGS
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.errors import UserError
from transformer.interop.json_files import MAX_FILE_BYTES, read_object

UNKNOWN = "[UNK]"
SPECIAL = ("[PAD]", UNKNOWN, "[CLS]", "[SEP]", "[MASK]")
MPNET = ("<pad>", "<s>", "</s>", "<mask>")
"""Special tokens of MPNet, whose vocabulary has those of BERT too."""


def word_piece(vocab: Path) -> tokenizers.Tokenizer:
    """BERT's tokenizer in one file, a token in each line, with the settings of tokenizer_config.json beside
    it (Devlin et al. 2019, the released code).

    Raises:
      UserError: it is no such file.
    """
    try:
        if vocab.stat().st_size > MAX_FILE_BYTES:
            raise UserError(f"{vocab}: {vocab.stat().st_size:,} bytes; expected at most {MAX_FILE_BYTES:,}")
        tokens = vocab.read_text(encoding="utf-8-sig").removesuffix("\n").split("\n")
    except (OSError, ValueError) as error:
        raise UserError(f"{vocab}: cannot be read ({error})") from None
    ids = {token.removesuffix("\r"): i for i, token in enumerate(tokens)}
    if len(ids) < len(tokens) or UNKNOWN not in ids:
        raise UserError(f"{vocab}: expected a token in each line, no token twice, and {UNKNOWN} among them")
    names = read_object(vocab.with_name(SETTINGS)) if vocab.with_name(SETTINGS).is_file() else {}
    backend = tokenizers.Tokenizer(models.WordPiece(ids, unk_token=UNKNOWN))
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=_flag(names, "do_lower_case", True),
        handle_chinese_chars=_flag(names, "tokenize_chinese_chars", True),
        strip_accents=_flag(names, "strip_accents", None),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens([name for name in SPECIAL if name in ids])
    if {*MPNET} <= {*ids}:
        backend.add_special_tokens([*MPNET[:3], tokenizers.AddedToken(MPNET[3], lstrip=True)])
        backend.post_processor = _template(ids, *MPNET[1:3])
    elif "[CLS]" in ids and "[SEP]" in ids:
        backend.post_processor = _template(ids, "[CLS]", "[SEP]")
    return backend


def _flag(names: Mapping[str, Any], name: str, default: bool | None) -> Any:
    value = names.get(name)
    return default if not isinstance(value, bool) else value


def _template(ids: Mapping[str, int], cls: str, sep: str) -> processors.TemplateProcessing:
    """`[CLS] text [SEP]`, and for two texts `[CLS] first [SEP] second [SEP]`, the second of type 1."""
    return processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(name, ids[name]) for name in (cls, sep)],
    )


PROBE = "\N{NULL}probe"
"""The text of a token that no vocabulary has."""


def added_around(backend: tokenizers.Tokenizer) -> tuple[list[int], list[int]]:
    """The tokens that a tokenizer adds before and after a text, a closed one too."""
    probe = tokenizers.Tokenizer.from_str(backend.to_str())
    probe.add_special_tokens([PROBE])
    ids, own = probe.encode(PROBE).ids, probe.encode(PROBE, add_special_tokens=False).ids
    at = ids.index(own[0])
    return ids[:at], ids[at + 1 :]


def write_encoder_tokenizer(
    folder: Path, tokenizer: Tokenizer, special: SpecialTokens, max_length: int, *, types: bool
) -> dict[str, Any]:
    """Writes tokenizer.json and tokenizer_config.json; returns the ids of special tokens for config.json.

    With `types` it gives the types of tokens in pairs of texts, which a model of one type does not have.
    Special tokens that only the model has are added; a tokenizer that adds none to a text, or others, now
    adds them as the model here reads them.
    """
    backend = tokenizers.Tokenizer.from_str(tokenizer.content)
    size = tokenizer.vocab_size
    missing = [special.name(i) for i in range(size, special.vocab_size)]
    takes = {special.name(special.mask)} if takes_space(tokenizer) else {*()}
    backend.add_special_tokens([tokenizers.AddedToken(name, lstrip=name in takes) for name in missing])
    ids = {"cls_token": special.cls, "sep_token": special.sep, "mask_token": special.mask}
    names = {role: str(backend.id_to_token(i)) for role, i in ids.items()}
    if added_around(backend) != ([special.cls], [special.sep]):
        known = {names[role]: i for role, i in ids.items()}
        backend.post_processor = _template(known, names["cls_token"], names["sep_token"])
    backend.save(str(folder / "tokenizer.json"))
    names["pad_token"] = tokenizer.name(tokenizer.pad_id)
    if tokenizer.unknown_id is not None:
        names["unk_token"] = tokenizer.name(tokenizer.unknown_id)
    inputs = ["input_ids", *(["token_type_ids"] if types else []), "attention_mask"]
    own = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": max_length}
    settings = own | {"model_input_names": inputs} | tokenizer.extras | names
    text = json.dumps(settings, ensure_ascii=False, indent=2)
    (folder / SETTINGS).write_text(text + "\n", encoding="utf-8")
    return {"bos_token_id": special.cls, "eos_token_id": special.sep, "pad_token_id": tokenizer.pad_id}
