"""The kinds of tokenizers that learn from a training text."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

END = "<|endoftext|>"
"""The token that ends every document."""

UNKNOWN = "\ufffd"
"""The character that stands for unknown ones, Unicode's own for the purpose."""


@dataclass(frozen=True)
class TokenizerKind:
    """How a kind of tokenizer is made: `train(texts, vocab_size)` from a training text, given in pieces.

    Without `learns` the text is not read. A kind whose `data.vocab_size` matters has a `least_size`, and
    `needs` says what that many tokens are for, beside the end of a document.
    """

    train: Callable[[Iterable[str], int], tokenizers.Tokenizer]
    learns: bool = True
    least_size: int = 0
    needs: str = ""


def train_characters(texts: Iterable[str], vocab_size: int) -> tokenizers.Tokenizer:
    """One token for each character of the text, and one for all others."""
    characters = sorted(set().union(*map(set, texts)) - {UNKNOWN})
    vocabulary = {character: i for i, character in enumerate([UNKNOWN, *characters])}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN))
    backend.decoder = decoders.Fuse()
    return backend


def train_bpe(texts: Iterable[str], vocab_size: int) -> tokenizers.Tokenizer:
    """Merges of the commonest neighbours, from bytes up, inside words (Sennrich et al. 2016, section 3.2;
    over bytes as in Radford et al. 2019, section 2.2)."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return backend


def train_words(texts: Iterable[str], vocab_size: int) -> tokenizers.Tokenizer:
    """The commonest words in lower case, and runs of other signs; one token stands for all others. What the
    text was cannot be had back: `decode` puts one space between any two words."""
    backend = tokenizers.Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(
        vocab_size=vocab_size, special_tokens=[UNKNOWN, END], show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    # With the same model anew, for the trainer's special tokens are never shown: an unknown word should be.
    made = tokenizers.Tokenizer(models.WordLevel(backend.get_vocab(), unk_token=UNKNOWN))
    made.normalizer, made.pre_tokenizer = backend.normalizer, backend.pre_tokenizer
    return made
