"""Log-likelihoods of continuations: by full forward passes, by search, and by the loss."""

import functools
import gzip

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

import launch
from commands.score import score_lines
from experiments import find_experiment
from tests import runs
from tests.parameters import random_params
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.errors import UserError
from transformer.evaluation.scoring import Score, score_rows, tokens_and_prompt_length
from workdir import opening
from workdir.opening import read_config

pytestmark = pytest.mark.usefixtures("in_root")

PAIRS = [("def f(x):", " return x"), ("", "é"), ("a b " * 9, "cd")]

KINDS = {
    "rope": ("lm", {"model.num_kv_heads": "1"}),
    "none": ("lm", {"model.position": "none", "model.pattern": "window", "model.pattern_size": "8"}),
    "learned": ("lm", {"model.position": "learned", "loss.chunk_size": "5"}),
    "memory": ("transformer_xl", {}),
    "joined": ("summarization_decoder", {}),
    "encoder-decoder": ("translation", {}),
    "recurrent": ("rnn_translation", {}),
}


@functools.cache
def experiment(kind):
    name, keys = KINDS[kind]
    values = read_config(f"configs/{name}.py:tiny")
    config = opening.check_config(values, (keys | {"data.tokenizer": "bytes"}).items())
    return find_experiment(config.experiment)(config, tokenizer=Tokenizer.train("bytes"))


def random(rng, made):
    inputs = [jnp.zeros((1, 1), jnp.int32)] * (2 if "EncoderDecoder" in type(made.model).__name__ else 1)
    return random_params(rng, made.model, *inputs, scale=0.3)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_against_full_forward_passes(rng, kind):
    made = experiment(kind)
    params, bos, eos = random(rng, made), made.data.tokenizer.bos_id, made.data.tokenizer.eos_id
    found = list(made.score(params, PAIRS))
    for (text, continuation), score in zip(PAIRS, found, strict=True):
        source, answer = [*text.encode()], [*continuation.encode()]
        if kind in ("rope", "none", "learned", "memory"):
            inputs, targets = [[bos, *source, *answer]], answer
        elif kind == "joined":
            inputs, targets = [[bos, *source, eos, *answer, eos]], [*answer, eos]
        else:
            inputs, targets = [[*source, eos], [bos, *answer, eos]], [*answer, eos]
        inputs[-1] = inputs[-1][:-1]
        logits = jax.jit(made.model.apply)({"params": params}, *(jnp.array([tokens]) for tokens in inputs))
        logits = np.asarray(logits, np.float64)[0, -len(targets) :, : made.model.vocab_size]
        log_p = special.log_softmax(logits, axis=-1)[np.arange(len(targets)), targets]
        assert score.log_likelihood == pytest.approx(log_p.sum(), abs=2e-4 * len(targets))
        assert score.tokens == len(targets) and score.unread == 0
        assert score.log_likelihood < -1
        assert score.greedy == bool((logits.argmax(-1) == targets).all())


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["joined", "encoder-decoder", "recurrent"])
def test_what_search_writes_has_the_score_that_search_gives_it(rng, kind):
    """And what greedy search writes, greedy would write."""
    made = experiment(kind)
    params, sources = random(rng, made), ["one two", "3", "x y z"]
    config = made.config.generate
    for size in (1, 3):
        keys = {"beam_size": size, "n_best": size, "length_penalty": 0.0, "max_new_tokens": 40}
        for key, value in keys.items():
            object.__setattr__(config, key, value)
        for source, hypotheses in zip(sources, made._translate(params, sources), strict=True):
            for ids, log_p in hypotheses:
                if len(ids) == 40:
                    continue  # which has no end
                row = made.row(source, "x")
                row = row._replace(tokens=[*row.tokens[: row.start], *ids, made.data.tokenizer.eos_id])
                (score,) = score_rows(made, params, [row])
                assert score.log_likelihood == pytest.approx(log_p, abs=1e-3)
                assert score.greedy or size > 1


@pytest.mark.thorough
def test_a_text_that_is_too_long_loses_its_beginning_and_says_so(rng):
    made = experiment("learned")
    most = made.config.model.max_length
    params = random(rng, made)
    short, whole, long = made.score(
        params, [("a" * (most - 3), "bcd"), ("a" * (most - 2), "bcd"), ("zz" + "a" * (most - 3), "bcd")]
    )
    assert (short.unread, whole.unread, long.unread) == (0, 1, 2)
    assert short[:3] == pytest.approx(whole[:3]) and short[:3] == pytest.approx(long[:3])


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize(
    ("kind", "pair", "message"),
    [
        ("rope", ("a", ""), "pair 2: the continuation '' adds no token"),
        ("rope", ("a", "b" * 3000), "pair 2: a continuation of 3000 tokens; the model reads 2048"),
        ("encoder-decoder", ("a", ""), "pair 2: the continuation '' has no token"),
        (
            "encoder-decoder",
            ("a", "b" * 96),
            "pair 2: a continuation of 97 tokens with its end; .* writes 96",
        ),
        ("joined", ("a" * 99, "b" * 48), "pair 2: a continuation of 49 tokens with its end; .* writes 48"),
    ],
)
def test_what_cannot_be_scored_is_refused_by_its_number(rng, kind, pair, message):
    made = experiment(kind)
    with pytest.raises(UserError, match=message):
        list(made.score(random(rng, made), [("a", "b"), pair]))


def test_the_border_of_text_and_continuation():
    """With bytes it is where it is; a token over it is the continuation's with the white space before it."""
    assert tokens_and_prompt_length(Tokenizer.train("bytes"), "a ", "b") == ([*b"a b"], 2)
    words = "the cat sat on the mat and the cat sat " * 50
    bpe = Tokenizer.train("bpe", [words], 290)
    assert len(bpe.encode(" cat")) == 1
    whole = bpe.encode("the cat")
    assert tokens_and_prompt_length(bpe, "the", " cat") == (whole, 1)
    assert tokens_and_prompt_length(bpe, "the ", "cat") == (whole, 1)  # " cat" is one token: so is its score
    # Within a word, as many tokens are the text's as it has alone.
    assert tokens_and_prompt_length(bpe, "the c", "at") == (whole, 1)
    assert tokens_and_prompt_length(bpe, "the", " cats") == (bpe.encode("the cats"), 1)
    with pytest.raises(UserError, match="adds no token"):
        tokens_and_prompt_length(Tokenizer.train("words", [words], 9), "the", "  ")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    source = runs.write_corpus(folder / "corpus")
    assert launch.main(runs.tiny(source, folder / "tiny")) == 0
    return folder / "tiny"


@pytest.mark.thorough
def test_the_command_writes_a_line_for_each(capfd, tmp_path, trained):
    (tmp_path / "pairs.tsv").write_text("alpha\t beta\n\\n\\t\tgamma\n" + "a" * 3000 + "\tb\n")
    mode = [f"--workdir={trained}", "--mode=score"]
    assert launch.main([*mode, f"--input={tmp_path}/pairs.tsv", f"--output={tmp_path}/scores.tsv"]) == 0
    out, error = capfd.readouterr()
    assert out == "" and "1 texts are longer than the model's context" in error
    lines = [line.split("\t") for line in (tmp_path / "scores.tsv").read_text().splitlines()]
    run, params = opening.load(trained)
    expected = run.experiment.score(params, [("alpha", " beta"), ("\n\t", "gamma"), ("a" * 3000, "b")])
    for (log_p, tokens, greedy), score in zip(lines, expected, strict=True):
        assert float(log_p) == pytest.approx(score.log_likelihood, abs=1e-5)
        assert (int(tokens), greedy) == (score.tokens, str(score.greedy).lower())
    assert launch.main([*mode, "--prompt=alpha\t beta"]) == 0
    alone = capfd.readouterr().out.split()  # in a batch of another shape, which rounds otherwise
    assert float(alone[0]) == pytest.approx(float(lines[0][0]), abs=1e-5) and alone[1:] == lines[0][1:]


def test_a_packed_file_with_a_byte_order_mark_is_scored(capfd, tmp_path, trained):
    scores = []
    for name, pack, text in (
        ("pairs", bytes, "alpha\\r\t beta\n"),
        ("pairs.gz", gzip.compress, "\ufeffalpha\r\t beta\r\n"),
    ):
        (tmp_path / name).write_bytes(pack(text.encode()))
        capfd.readouterr()
        assert launch.main([f"--workdir={trained}", "--mode=score", f"--input={tmp_path / name}"]) == 0
        scores.append(capfd.readouterr().out)
    assert scores[0] == scores[1] and scores[0].count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompt=alpha beta"], "--prompt: pair 1: 0 tabs in its line; expected TEXT, a tab, CONTINUATION"),
        (["--prompt=a\tb\tc"], "--prompt: pair 1: 2 tabs in its line"),
        (["--prompt=a\t"], "--prompt: pair 1: the continuation '' adds no token"),
        (["--input={}"], "--input: {}: pair 2: the continuation '' adds no token"),
        (["--prompt=a\tb", "--temperature=1"], "--temperature: only --mode=predict takes it"),
        (["--input=/dev/null"], "/dev/null"),
    ],
)
def test_what_the_command_is_given_wrong_is_one_line(capfd, trained, tmp_path, arguments, message):
    (file := tmp_path / "pairs.tsv").write_text("a\tb\na\t\n")
    *arguments, message = [each.replace("{}", str(file)) for each in [*arguments, message]]
    assert launch.main([f"--workdir={trained}", "--mode=score", *arguments]) == 2
    out, error = capfd.readouterr()
    assert out == "" and message in error and error.count("\n") == 1


def test_a_run_that_writes_no_text_is_refused():
    class Other:
        config, row = experiment("rope").config, None

    with pytest.raises(UserError, match="a run of language_modeling has no likelihood"):
        next(score_lines(Other(), None, ["a\tb"]))


@pytest.mark.parametrize("number", [0, 1])
def test_only_the_first_process_says_that_texts_were_cut(monkeypatch, capfd, number):
    class Cut:
        row = "given"

        def score(self, params, pairs):
            return (Score(-1.0, 1, False, unread=3) for _ in pairs)

    monkeypatch.setattr(jax, "process_index", lambda: number)
    assert list(score_lines(Cut(), None, ["a\tb"])) == ["-1.000000\t1\tfalse"]
    assert capfd.readouterr().err.count("1 texts are longer") == 1 - number
