"""`--mode=batch --learned`: the tokens that a step learns, marked in the text of its rows."""

import re

import numpy as np
import pytest

import launch
from commands.support.learned_tokens import COLOURS, DIM, MARKS, PLAIN, marked_documents
from tests.data.chat.test_chat import CHATML, TALK
from transformer.data.chat.chat import PackedSequences
from transformer.data.chat.chat_template import ChatTemplate
from transformer.data.chat.chat_tokens import ChatTokens
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.errors import UserError

BEFORE, BETWEEN, AFTER = MARKS


@pytest.fixture(scope="module")
def rows():
    """Two rows with two conversations in all, and one of padding; and the tokenizer."""
    backend = Tokenizer.train("bytes").backend
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer = Tokenizer(backend)
    encoded = [ChatTokens(tokenizer, ChatTemplate(CHATML)).encode(talk) for talk in (TALK, TALK[1:3])]
    offsets = np.cumsum([0, *(len(ids) for ids, _ in encoded)])
    sequences = type("Sequences", (), {"offsets": offsets, "records": np.arange(2), "identity": ""})()
    sequences.tokens, sequences.answers = (np.concatenate(arrays) for arrays in zip(*encoded, strict=True))
    sequences.firsts = np.array([int(marks.argmax()) for _, marks in encoded])
    batch = PackedSequences(sequences, 300).batch(np.array([0, -1]))
    return batch, tokenizer


@pytest.mark.parametrize("colours", [False, True])
def test_learned_tokens_are_marked_one_by_one(rows, colours):
    batch, tokenizer = rows
    documents = {number: (counts, text) for _, number, counts, text in marked_documents(*rows, colours)}
    assert len(documents) == 2 and {row for row, *_ in marked_documents(*rows, colours)} == {0}
    for number, (counts, text) in documents.items():
        here = batch["segments"][0] == number
        learned, last = (
            batch["targets"][0][here][batch["weights"][0][here] > 0],
            batch["targets"][0][here][-1],
        )
        whole = tokenizer.backend.decode(
            [*batch["tokens"][0][here].tolist(), int(last)], skip_special_tokens=False
        )
        assert counts == f"{len(learned)} of {here.sum() + 1} tokens are learned"
        expected = tokenizer.backend.decode(learned.tolist(), skip_special_tokens=False)
        if colours:
            parts = re.findall(r"(\033\[[0-9;]*m)([^\033]*)", text)
            assert "".join(part for _, part in parts) == whole and text.endswith(PLAIN)
            assert "".join(part for colour, part in parts if colour in COLOURS) == expected
            assert {colour for colour, part in parts if part} == {*COLOURS, DIM}
        else:
            assert re.sub("[⟦·⟧]", "", text) == whole
            inside = re.findall("⟦([^⟧]*)⟧", text)
            assert "".join(inside).replace(BETWEEN, "") == expected
            assert inside[0].split(BETWEEN) == [*"2, größer als 1 🙂", "<|im_end|>"]


def test_rows_without_next_tokens_are_refused(rows):
    batch, tokenizer = rows
    with pytest.raises(UserError, match="--learned: the targets of this run are not the next tokens"):
        [*marked_documents(batch | {"targets": batch["tokens"]}, tokenizer, False)]
    for fewer, given in ((batch, None), ({"tokens": batch["tokens"]}, tokenizer)):
        with pytest.raises(UserError, match="--learned: batches of this run have no tokens with targets"):
            [*marked_documents(fewer, given, False)]


@pytest.mark.thorough
def test_a_run_prints_what_each_kind_of_fine_tuning_learns(tmp_path, capsys, in_root):
    """Conversations and pairs, each with its place; to a file as to a pipe."""
    for name in ("finetune_chat", "dpo"):
        run = f"--workdir={tmp_path}/{name}"
        assert launch.main([f"--config=configs/{name}.py:tiny", run]) == 0
        capsys.readouterr()
        assert launch.main([run, "--mode=batch", "--step=1", "--learned"]) == 0
        printed = capsys.readouterr().out
        heads = re.findall(r"^row \d+, .+: ([\d,]+) of ([\d,]+) tokens are learned$", printed, re.MULTILINE)
        assert heads and all(0 < int(n) < int(m.replace(",", "")) for n, m in heads)
        assert printed.count(BEFORE) == printed.count(AFTER) == len(heads) and "\033" not in printed
        out = tmp_path / f"{name}.txt"
        assert launch.main([run, "--mode=batch", "--step=1", "--learned", f"--output={out}"]) == 0
        assert out.read_text() == printed
