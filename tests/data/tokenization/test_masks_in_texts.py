"""Masks in a text are as many tokens as the text asks for, and the words around them are not changed."""

import pytest

from experiments import find_experiment
from transformer.data.tokenization.special_tokens import encode_masked, mask_problem
from transformer.data.tokenization.tokenizers import Tokenizer
from workdir import opening
from workdir.opening import read_config

WORDS = ["the cat sat on a mat, and a hat, the cats sat"] * 9


@pytest.mark.parametrize("kind", ["bpe", "words", "bytes"])
@pytest.mark.parametrize("count", [1, 3, 12])
def test_a_mask_with_a_number_is_that_many_masks(kind, count):
    tokenizer = Tokenizer.train(kind, WORDS, 280)
    one, several = (
        encode_masked(tokenizer, f"the {mark} sat[MASK]", 999) for mark in ("[MASK]", f"[MASK*{count}]")
    )
    place = one.index(999)
    assert several == [*one[:place], *[999] * (count - 1), *one[place:]]
    assert one.count(999) == 2 and one[-1] == 999
    # A space before a word is a part of it where the tokenizer says so, and a token of bytes.
    before = tokenizer.encode("the " if kind == "bytes" else "the")
    assert encode_masked(tokenizer, "the [MASK] sat", 999) == [*before, 999, *tokenizer.encode(" sat")]
    assert encode_masked(tokenizer, "the cat", 999) == tokenizer.encode("the cat")


@pytest.mark.parametrize(
    "mark", ["[MASK*0]", "[MASK*00]", "[MASK*12345]", "[MASK*]", "[MASK*two]", "[MASK*-1]"]
)
@pytest.mark.parametrize("name", ["bert", "diffusion_lm"])
@pytest.mark.usefixtures("in_root")
def test_a_wrong_number_is_named(mark, name):
    config = opening.check_config(read_config(f"configs/{name}.py:tiny"))
    experiment = object.__new__(find_experiment(config.experiment))  # before anything of the run is read
    said = experiment.problem(f"a [MASK] and {mark} [MASK*2]")
    assert said == f"has {mark}; expected [MASK], or [MASK*N] with N from 1 to 9999"


def test_masks_that_can_be_read_have_no_problem():
    assert mask_problem("[MASK] [MASK*1] [MASK*9999] [mask*0] MASK*0") == ""
