"""The tokenizer of a model's folder, and the tokenizer files of an exported one."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from transformer.data.tokenization.tokenizer_settings import ROLES, SETTINGS, settings_beside, special_in
from transformer.data.tokenization.tokenizers import TARGETS, Tokenizer, read_backend
from transformer.errors import UserError, first_line
from transformer.interop.json_files import as_list, read_object
from transformer.interop.sentencepiece import read_sentencepiece
from transformer.interop.wordpiece import added_around, word_piece

PIECES = ("tokenizer.model", "spiece.model")
"""Names of SentencePiece models."""

SIDES, UNKNOWN = ("source.spm", "target.spm"), "<unk>"
"""Names of the SentencePiece models of the two sides of pairs, and of their token for unknown text."""

ADDED = "added_tokens.json"
"""The name of a file with tokens that are added to a vocabulary, and their ids."""

DECODER_START = "decoder_start_token_id"
"""The key of config.json with the token that an encoder-decoder's targets start with."""


def read_tokenizer(folder: Path, config: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer in a folder: tokenizer.json, vocab.txt, vocab.json with merges.txt, a SentencePiece
    model, or one of sources and one of targets, whose ids are in vocab.json (Marian).

    Its special tokens are those that tokenizer_config.json names, otherwise those of `config`, the model's.

    Raises:
      UserError: there is none, it cannot be read, or it has ids that the model's vocabulary does not have.
    """
    backend, of_targets = _backend(folder), _targets(folder)
    ids = {role: _first(config.get(f"{role}_id")) for role in ROLES}
    names = {role: backend.id_to_token(i) for role, i in ids.items() if i is not None}
    special = {role: name for role, name in names.items() if name is not None}
    special |= special_in(settings_beside(folder / "tokenizer.json"), backend)
    if (start := _first(config.get(DECODER_START))) is not None and (name := backend.id_to_token(start)):
        special["bos_token"] = name  # of encoder-decoders, whose sources have no start token
    targets = None if of_targets is None else Tokenizer(of_targets, special)
    tokenizer = Tokenizer(backend, special, targets)
    tokenizer.folder = folder
    size = config.get("vocab_size")
    if type(size) is int and tokenizer.vocab_size > size:
        raise UserError(
            f"{folder}: {tokenizer.vocab_size:,} tokens in the tokenizer, vocab_size {size:,} in config.json"
        )
    return tokenizer


def _first(tokens: Any) -> int | None:
    """The id in "eos_token_id", of which there may be several: the first ends a document."""
    first = next(iter(as_list(tokens)), None)
    return first if type(first) is int and 0 <= first < 1 << 31 else None


def _backend(folder: Path) -> tokenizers.Tokenizer:
    if (folder / "tokenizer.json").is_file():
        return read_backend(folder / "tokenizer.json")
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        return _whole(byte_level_bpe(folder / "vocab.json", folder / "merges.txt"), folder)
    if (folder / SIDES[0]).is_file():
        return read_sentencepiece(folder / SIDES[0], _shared_ids(folder))
    if (folder / "vocab.txt").is_file():
        return _whole(word_piece(folder / "vocab.txt"), folder)
    for name in PIECES:
        if (folder / name).is_file():
            return read_sentencepiece(folder / name)
    files = f"no vocab.txt, no {PIECES[0]}, and no vocab.json with merges.txt"
    raise UserError(f"{folder}: there is no tokenizer.json, {files}")


def _whole(backend: tokenizers.Tokenizer, folder: Path) -> tokenizers.Tokenizer:
    """The tokenizer of a vocabulary; raises `UserError` if other files of the folder add tokens to it."""
    added = read_object(folder / ADDED) if (folder / ADDED).is_file() else {}
    more = settings_beside(folder / "tokenizer.json").get("added_tokens_decoder")
    for i, token in more.items() if isinstance(more, dict) else ():
        added |= {str(token.get("content")): i} if isinstance(token, dict) else {}
    for name, i in added.items():
        if str(backend.token_to_id(name)) != str(i):
            why = f"{name[:80]!r}, token {str(i)[:80]}, is added to its vocabulary"
            raise UserError(f"{folder}: {why}; give its tokenizer.json instead")
    return backend


def _targets(folder: Path) -> tokenizers.Tokenizer | None:
    """The tokenizer of targets, if it is another than that of sources."""
    if (folder / "tokenizer.json").is_file():
        return read_backend(folder / TARGETS) if (folder / TARGETS).is_file() else None
    if not (folder / SIDES[0]).is_file():
        return None
    if not (folder / SIDES[1]).is_file():
        raise UserError(f"{folder}: there is {SIDES[0]}, and no {SIDES[1]}")
    return read_sentencepiece(folder / SIDES[1], _shared_ids(folder))


def _shared_ids(folder: Path) -> dict[str, int]:
    """Token -> id of the vocabulary that two SentencePiece models share.

    Raises:
      UserError: each has a vocabulary of its own; or the ids are not 0, 1, 2 and so on, or lack a token for
        unknown text.
    """
    if (folder / "target_vocab.json").is_file():
        raise UserError(f"{folder / 'target_vocab.json'}: only one vocabulary for both sides is known here")
    if not (folder / "vocab.json").is_file():
        raise UserError(f"{folder}: there is {SIDES[0]}, and no vocab.json with the ids of its tokens")
    ids = read_object(folder / "vocab.json")
    if not all(type(i) is int for i in ids.values()) or {*ids.values()} != {*range(len(ids))}:
        raise UserError(f"{folder / 'vocab.json'}: expected ids from 0 to {len(ids) - 1:,}, each once")
    if UNKNOWN not in ids:
        raise UserError(f"{folder / 'vocab.json'}: there is no {UNKNOWN}")
    return ids


def byte_level_bpe(vocab: Path, merges: Path) -> tokenizers.Tokenizer:
    """The tokenizer of GPT-2 in its two files: tokens with their ids, and the merges in order (Radford et al.
    2019, section 2.2), with the add_prefix_space of tokenizer_config.json beside them.

    Raises:
      UserError: they are not such files.
    """
    spaced = settings_beside(vocab).get("add_prefix_space") is True
    ids = read_object(vocab)
    if not all(type(i) is int and 0 <= i < 1 << 31 for i in ids.values()):
        raise UserError(f"{vocab}: expected an id for each token")
    try:
        lines = merges.read_text(encoding="utf-8-sig").split("\n")
        pairs: Any = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
        backend = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=pairs))
    except Exception as error:  # the library raises nothing more precise
        raise UserError(f"{merges}: not the merges of {vocab.name} ({first_line(error)[:160]})") from None
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=spaced)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    return backend


REBUILT = "qwen2"
"""The `model_type` whose tokenizer transformers 5 builds from vocabulary and merges alone, so that it cuts
texts as Qwen2's does, whatever class is named, unless the folder names a class of its own."""

AS_WRITTEN = "as_written.py"
"""The name of a file with that class, which is read with trust_remote_code=True alone; without, that of any
other family is taken."""

AS_WRITTEN_CODE = '''"""tokenizer.json as it is written."""

from transformers import PreTrainedTokenizerFast


class AsWritten(PreTrainedTokenizerFast):
    """A tokenizer that cuts texts as its tokenizer.json says."""
'''


def write_tokenizer(
    folder: Path,
    tokenizer: Tokenizer,
    max_length: int,
    *,
    paired: bool = False,
    answers: bool = False,
    model_type: str = "",
    first: str = "",
) -> dict[str, Any]:
    """Writes tokenizer.json and tokenizer_config.json, which are read alike by transformers with a model of
    this type, or any; returns the ids of special tokens for config.json.

    A tokenizer that adds no special tokens adds there what models here read with a text: the start token
    before it, but of a `paired` model, an encoder-decoder, the token named `first`, if there is one; and the
    end token after it, if the model `answers` it with another text. Such a model answers otherwise without
    them, so there they replace others.
    """
    backend = tokenizers.Tokenizer.from_str(tokenizer.content)
    before, after = [] if paired else [tokenizer.bos_id], [tokenizer.eos_id] if answers else []
    before += [tokenizer.backend.token_to_id(first)] if first else []
    if backend.post_processor is None or (answers and added_around(backend) != (before, after)):
        opening, closing = ([tokenizer.name(i) for i in ids] for ids in (before, after))
        backend.post_processor = processors.TemplateProcessing(
            single=[*opening, "$A", *closing],
            pair=[*opening, "$A", "$B", *closing],
            special_tokens=[*{tokenizer.name(i): i for i in (*before, *after)}.items()],
        )
    backend.save(str(folder / "tokenizer.json"))
    if tokenizer.targets is not tokenizer:
        (folder / TARGETS).write_text(tokenizer.targets.content, encoding="utf-8")
    ids = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id, "pad_token": tokenizer.pad_id}
    names = {role: tokenizer.name(i) for role, i in ids.items()}
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": max_length}
    settings |= names
    settings["clean_up_tokenization_spaces"] = False  # before version 5 decoding turned " ." into "."
    # Prompts of a batch are continued at their end. CTranslate2 asks for a token for unknown text, also where
    # every text is known; GPT-2 names the same one.
    settings["padding_side"] = "right" if paired else "left"
    unknown = tokenizer.eos_id if tokenizer.unknown_id is None else tokenizer.unknown_id
    settings["unk_token"] = tokenizer.name(unknown)
    if not paired and model_type in ("", REBUILT):
        settings["auto_map"] = {"AutoTokenizer": [None, f"{Path(AS_WRITTEN).stem}.AsWritten"]}
        (folder / AS_WRITTEN).write_text(AS_WRITTEN_CODE, encoding="utf-8")
    text = json.dumps(settings | tokenizer.extras, ensure_ascii=False, indent=2)
    (folder / SETTINGS).write_text(text + "\n", encoding="utf-8")
    return {f"{role}_id": i for role, i in ids.items()} | (
        {DECODER_START: tokenizer.bos_id} if paired else {}
    )
