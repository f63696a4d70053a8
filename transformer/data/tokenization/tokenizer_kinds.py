"""The kinds of tokenizers that are trained on a text."""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from transformer.data.tokenization.token_names import END, UNKNOWN

MAX_WORD_BYTES = 1024
"""Bytes of the longest word when BPE is trained, which takes the square of them; longer words are cut."""


@dataclass(frozen=True)
class TokenizerKind:
    """A kind of tokenizer and its training, `train(texts, vocab_size)`, with the training text in pieces.

    Without `learns` the text is not read. Kinds that use `data.vocab_size` have a `least_size`; `needs` names
    the tokens that it counts, in addition to the end of a document.
    """

    train: Callable[[Iterable[str], int], tokenizers.Tokenizer]
    learns: bool = True
    least_size: int = 0
    needs: str = ""

    @property
    def code(self) -> str:
        """The user's file that defines `train`, by which its cached tokenizers are found; "" if there is
        none, and for the kinds that are defined here."""
        if getattr(self.train, "__module__", "") == __name__:
            return ""
        try:
            return "".join(inspect.findsource(self.train)[0])
        except (OSError, TypeError):  # written at a prompt, or no function of Python
            return ""


def text_normalizer(lowercase: bool = False, strip_accents: bool = False) -> normalizers.Normalizer:
    """The change of a text before it is split into tokens: accents and other combining marks are removed,
    letters become lower-case (Devlin et al. 2019, the released code, "uncased")."""
    marks = [normalizers.NFD(), normalizers.StripAccents(), normalizers.NFC()] if strip_accents else []
    return normalizers.Sequence([*marks, *([normalizers.Lowercase()] if lowercase else [])])


def train_normalized(
    kind: TokenizerKind, texts: Iterable[str], vocab_size: int, **normalization: bool
) -> tokenizers.Tokenizer:
    """A tokenizer that changes a text as `text_normalizer` with these arguments does, trained on such
    text."""
    change = text_normalizer(**normalization)
    backend = kind.train(map(change.normalize_str, texts), vocab_size)
    backend.normalizer = normalizers.Sequence([change, *filter(None, [backend.normalizer])])
    return backend


def _symbol(byte: int) -> str:
    """The character for a byte in byte-level tokenizers: itself if it is printable."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return chr(byte) if byte in shown else chr(0x100 + byte - sum(printable < byte for printable in shown))


def byte_tokens(texts: Iterable[str] = (), vocab_size: int = 0) -> tokenizers.Tokenizer:
    """Id b is byte b; there is nothing to train."""
    backend = tokenizers.Tokenizer(models.BPE(vocab={_symbol(byte): byte for byte in range(256)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def train_characters(texts: Iterable[str], vocab_size: int) -> tokenizers.Tokenizer:
    """One token for each character of the text, and an unknown token."""
    characters = sorted(set().union(*map(set, texts)) - {UNKNOWN})
    vocabulary = {character: i for i, character in enumerate([UNKNOWN, *characters])}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN))
    backend.decoder = decoders.Fuse()
    return backend


def train_bpe(texts: Iterable[str], vocab_size: int) -> tokenizers.Tokenizer:
    """Byte-level BPE: merges of the most frequent pairs inside words (Sennrich et al. 2016, section 3.2; over
    bytes as in Radford et al. 2019, section 2.2)."""
    backend = tokenizers.Tokenizer(models.BPE())
    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.FixedLength(length=MAX_WORD_BYTES)]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    backend.pre_tokenizer = split
    return backend


def train_words(texts: Iterable[str], vocab_size: int) -> tokenizers.Tokenizer:
    """The most frequent words in lower case and runs of punctuation, and an unknown token. It is not
    lossless: `decode` puts one space between any two words."""
    backend = tokenizers.Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(
        vocab_size=vocab_size, special_tokens=[UNKNOWN, END], show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    # A new model, because special tokens of the trainer are never decoded, and the unknown token should be.
    words = tokenizers.Tokenizer(models.WordLevel(backend.get_vocab(), unk_token=UNKNOWN))
    words.normalizer, words.pre_tokenizer = backend.normalizer, backend.pre_tokenizer
    return words


TOKENIZERS = {
    "bytes": TokenizerKind(byte_tokens, learns=False),
    "characters": TokenizerKind(train_characters),
    "bpe": TokenizerKind(train_bpe, least_size=257, needs="every byte"),
    "words": TokenizerKind(train_words, least_size=3, needs="a word, all others"),
}
"""Value of `data.tokenizer` -> how to make it; any other value is the path of a `tokenizer.json`."""
