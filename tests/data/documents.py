"""A source of given texts, and an independent implementation of its packed rows."""

from pathlib import Path

import numpy as np

from transformer.data.cache.token_cache import TokenCache
from transformer.data.sources import Source
from transformer.data.tokenization.tokenizers import Tokenizer

TOKENIZERS = ("bytes", "characters", "bpe", "words", "uncased", "metaspace", "wordpiece")

TEXT = "def f(x):\n    return 'naïve café' + \"🙂\" * 3  # ünïcode\n\n\nclass A: pass\n日本語のテキスト\n" * 3


class Texts(Source):
    """The given texts."""

    def __init__(self, texts, identity="texts"):
        self.name, self.identity, self._texts = "the texts", identity, list(texts)

    def __len__(self):
        return len(self._texts)

    def __getitem__(self, index):
        return {"text": self._texts[index]}


def tokenizer(kind: str, texts=(TEXT,)) -> Tokenizer:
    """A tokenizer of this library, or one like those of other projects: with a normaliser, losing white
    space."""
    if kind in ("bytes", "characters", "bpe", "words"):
        return Tokenizer.train(kind, texts, 300)
    if kind == "uncased":
        return Tokenizer.train("bpe", texts, 300, lowercase=True, strip_accents=True)
    import tokenizers
    from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

    if kind == "metaspace":
        backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=False))
        backend.normalizer = normalizers.NFKC()
        backend.pre_tokenizer = pre_tokenizers.Metaspace()
        backend.decoder = decoders.Metaspace()
        trainer = trainers.BpeTrainer(vocab_size=200, special_tokens=["<unk>", "</s>"], show_progress=False)
    else:
        backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
        backend.normalizer = normalizers.BertNormalizer()
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(
            vocab_size=200, special_tokens=["[UNK]", "[SEP]"], show_progress=False
        )
    backend.train_from_iterator(texts, trainer)
    return Tokenizer(backend)


def cache_of(texts, kind: str, folder: Path) -> tuple[TokenCache, Tokenizer]:
    made = tokenizer(kind, [*texts, TEXT])
    return TokenCache.of(Texts(texts, identity=repr(texts)), made, folder), made


def packed_by_hand(texts, made: Tokenizer, length: int) -> list[dict[str, np.ndarray]]:
    """The rows of `PackedRows`, one token at a time; `bytes` only as totals of documents."""
    stream = []  # (id, document, place in the document)
    for document, text in enumerate(texts):
        ids = [made.bos_id, *made.encode(text), made.eos_id]
        stream += [(i, document, place) for place, i in enumerate(ids)]
    rows = []
    for start in range(0, len(stream) - 1, length):
        row = {name: np.zeros(length, np.int32) for name in ("tokens", "targets", "segments", "positions")}
        row["weights"] = np.zeros(length, np.float32)
        for column, place in enumerate(range(start, min(start + length, len(stream) - 1))):
            (i, document, inside), (following, next_document, _) = stream[place], stream[place + 1]
            row["tokens"][column], row["targets"][column] = i, following
            row["weights"][column] = document == next_document
            row["segments"][column] = document - stream[start][1] + 1
            begun_before = document == stream[start][1]
            row["positions"][column] = column if begun_before else inside
        rows.append(row)
    return rows
