import re

import jax.numpy as jnp
import numpy as np
import pytest

import launch
from commands.analyze import occurrences
from tests import runs
from transformer.evaluation.embeddings import word_vectors
from workdir.opening import load

pytestmark = [pytest.mark.usefixtures("in_root", "drawn"), pytest.mark.thorough]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return runs.write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def words(tmp_path_factory, source):
    """A run of word vectors."""
    folder = tmp_path_factory.mktemp("words") / "run"
    config = "--config=configs/word_embedding.py:tiny"
    assert launch.main([config, f"--config.data.source={source}", f"--workdir={folder}"]) == 0
    return folder


@pytest.fixture(scope="module")
def bpe(tmp_path_factory, source):
    """A language model some of whose tokens are words."""
    folder = tmp_path_factory.mktemp("bpe") / "run"
    tokenizer = ["--config.data.tokenizer=bpe", "--config.data.vocab_size=300"]
    assert launch.main(runs.tiny(source, folder, *tokenizer)) == 0
    return folder


@pytest.fixture(scope="module")
def letters(tmp_path_factory, source):
    """A language model each of whose tokens is a byte."""
    folder = tmp_path_factory.mktemp("letters") / "run"
    assert launch.main(runs.tiny(source, folder, "--config.model.max_length=80")) == 0
    return folder


@pytest.fixture(scope="module")
def masked(tmp_path_factory, source):
    """An encoder that fills masks."""
    folder = tmp_path_factory.mktemp("masked") / "run"
    assert (
        launch.main(
            ["--config=configs/bert.py:tiny", f"--config.data.source={source}", f"--workdir={folder}"]
        )
        == 0
    )
    return folder


def analyze(capfd, folder, *flags: str) -> list[str]:
    capfd.readouterr()
    assert launch.main([f"--workdir={folder}", "--mode=analyze", *flags]) == 0, capfd.readouterr().err
    return capfd.readouterr().out.splitlines()


def fails(capfd, folder, *flags: str) -> str:
    """The one line that a command which fails through its user's fault prints."""
    capfd.readouterr()
    assert launch.main([f"--workdir={folder}", "--mode=analyze", *flags]) == 2
    out, error = capfd.readouterr()
    assert out == "" and error.startswith("error: ") and error.count("\n") == 1
    return error.removeprefix("error: ")[:-1]


def cosines(lines: list[str], count: int) -> np.ndarray:
    """The numbers of a table of that many words."""
    return np.array([[float(cell) for cell in line.split()[-count:]] for line in lines])


def test_the_tokens_of_a_text_are_listed_with_their_numbers(capfd, bpe, letters):
    lines = analyze(capfd, letters, "--tokens=a b\n")
    assert lines[0] == "4 tokens of 4 characters:" and [line.split()[1] for line in lines[1:]] == [*"a␣b⏎"]
    tokenizer = load(bpe)[0].experiment.data.tokenizer
    first, *listed = analyze(capfd, bpe, "--tokens=alpha beta é")
    ids = [int(line.split()[0]) for line in listed]
    assert ids == tokenizer.encode("alpha beta é") and first == f"{len(ids)} tokens of 12 characters:"
    assert analyze(capfd, bpe, "--tokens=") == ["0 tokens of 0 characters:"]
    both = analyze(capfd, bpe, "--tokens=alpha", "--words=alpha,beta")
    assert len(both) > len(analyze(capfd, bpe, "--words=alpha,beta")) == 3


@pytest.mark.parametrize("kind", ["words", "bpe"])
def test_the_table_of_a_run_is_compared_by_cosine(capfd, request, kind):
    folder = request.getfixturevalue(kind)
    run, params = load(folder)
    tokenizer = run.experiment.data.tokenizer
    table = np.asarray(params["embedding"]["table"], np.float64)
    (alpha,), (beta,) = (tokenizer.encode(f" {word}") for word in ("alpha", "beta"))
    expected = table[alpha] @ table[beta] / np.linalg.norm(table[alpha]) / np.linalg.norm(table[beta])
    found = cosines(analyze(capfd, folder, "--words=alpha, beta")[1:], 2)
    np.testing.assert_allclose(found, [[1, expected], [expected, 1]], atol=6e-4)

    title, *listed = analyze(capfd, folder, "--neighbours=alpha")
    vectors = word_vectors(params, run.experiment.data.tokenizer)
    assert title == "nearest to alpha:"
    assert [line.split()[1] for line in listed] == [word for word, _ in vectors.nearest("alpha")]
    a, b, c = vectors.words[:3]
    title, best, *_ = analyze(capfd, folder, f"--analogy={a},{b},{c}")
    assert title == f"{a} - {b} + {c}:" and best.split()[1] == vectors.analogy(a, b, c)[0][0]


def test_a_word_of_word_vectors_may_have_capitals(capfd, words):
    found = analyze(capfd, words, "--neighbours=ALPHA,beta")
    assert found[0] == "nearest to ALPHA:"
    assert found[1 : 1 + 5] == analyze(capfd, words, "--neighbours=alpha")[1:6]
    assert "nearest to beta:" in found


def test_neighbours_are_also_what_is_predicted(capfd, words):
    capfd.readouterr()
    assert launch.main([f"--workdir={words}", "--mode=predict", "--prompt=alpha"]) == 0
    predicted = re.findall(r"(\S+) (-?[\d.]+)(?:, |$)", capfd.readouterr().out)
    listed = [line.split() for line in analyze(capfd, words, "--neighbours=alpha")[1:]]
    assert [word for word, _ in predicted] == [word for _, word in listed]
    for (_, predicted_cosine), (cosine, _) in zip(predicted, listed, strict=True):
        assert float(predicted_cosine) == pytest.approx(float(cosine), abs=0.006)
    assert launch.main([f"--workdir={words}", "--mode=predict", "--prompt=unheard of"]) == 0
    assert capfd.readouterr().out == "\n"


def test_questions_are_counted_by_section(capfd, words, tmp_path):
    run, params = load(words)
    vectors = word_vectors(params, run.experiment.data.tokenizer)
    best = vectors.analogy("beta", "alpha", "gamma")[0][0]
    other = next(word for word in vectors.words if word != best)
    file = tmp_path / "questions.txt"
    file.write_text(f": one\nAlpha beta GAMMA {best}\nalpha beta gamma {other}\n: two\nalpha beta gamma no\n")
    lines = analyze(capfd, words, f"--analogies={file}")
    found = {line.split()[0]: line.split()[1:] for line in lines}
    assert found["one"] == ["1", "2", "50.0%", "100.0%", "of", "2"]
    assert found["two"] == ["0", "0", "none", "0.0%", "of", "1"]
    assert found["all"] == ["1", "2", "50.0%", "66.7%", "of", "3"]
    assert lines[-1].startswith("1 of 3 questions have a word that is not in the vocabulary")


SENTENCES = ["alpha beta gamma.", "Épsilon: Beta, delta beta!", "no such word: betas"]


@pytest.mark.parametrize("as_file", [True, False])
def test_a_word_is_compared_with_itself_in_other_contexts(capfd, letters, tmp_path, as_file):
    """Of a model of bytes, where it is plain which states are the word's."""
    run, params = load(letters)
    experiment = run.experiment
    expected = []
    for sentence in SENTENCES[:2]:
        text = sentence.encode()
        tokens = jnp.array([[experiment.data.tokenizer.bos_id, *text]])
        states = np.asarray(experiment.model.apply({"params": params}, tokens, method="hidden"), np.float64)
        for start in [match.start() for match in re.finditer(b"[bB]eta", text)]:
            expected.append(states[0, 1 + start : 1 + start + 4].mean(axis=0))
    assert len(expected) == 3
    (tmp_path / "sentences.txt").write_text("\n".join(SENTENCES), encoding="utf-8")
    contexts = str(tmp_path / "sentences.txt") if as_file else " ".join(SENTENCES)
    found = occurrences(experiment, params, "beta", contexts)
    assert [shown for shown, _ in found] == [
        "alpha [beta] gamma.",
        "Épsilon: [Beta], delta beta!",
        "Épsilon: Beta, delta [beta]!",
    ]
    np.testing.assert_allclose([state for _, state in found], expected, atol=1e-4)

    picture = tmp_path / "map.png"
    lines = analyze(capfd, letters, "--words=beta", f"--contexts={contexts}", f"--map={picture}")
    units = [state / np.linalg.norm(state) for state in expected]
    np.testing.assert_allclose(cosines(lines[4:7], 3), np.array(units) @ np.array(units).T, atol=1e-3)
    assert lines[0] == "beta 1: alpha [beta] gamma." and lines[-1] == f"{picture} shows 3 vectors"
    assert picture.is_file()


def test_an_encoder_knows_what_follows_a_word_and_a_decoder_what_precedes_it(capfd, letters, masked):
    def known(folder, first: str, second: str) -> bool:
        """Whether the word's states differ between the two sentences."""
        run, params = load(folder)
        (_, one), (_, other) = occurrences(run.experiment, params, "beta", f"{first}\n{second}")
        return not np.allclose(one, other, atol=1e-5)

    for folder, both_sides in ((letters, False), (masked, True)):
        assert known(folder, "alpha beta gamma", "gamma beta gamma")
        assert known(folder, "alpha beta gamma", "alpha beta delta") == both_sides
        assert not known(folder, "alpha beta gamma", "alpha beta gamma")
    assert len(analyze(capfd, masked, "--words=beta", "--contexts=beta. Beta")) == 5


def test_a_map_shows_what_is_asked_for_or_the_first_words(capfd, bpe, words, tmp_path):
    picture = tmp_path / "map.png"
    lines = analyze(capfd, words, "--words=alpha,beta", "--neighbours=alpha", f"--map={picture}")
    count = len({"alpha", "beta"} | {line.split()[1] for line in lines[4:-1]})
    assert lines[-1] == f"{picture} shows {count} vectors" and picture.is_file()
    run, params = load(bpe)
    vectors = word_vectors(params, run.experiment.data.tokenizer)
    long = [word for word in vectors.words if word.isalpha() and len(word) > 3]
    assert 3 <= len(long) < 150
    assert analyze(capfd, bpe, f"--map={picture}") == [f"{picture} shows {len(long)} vectors"]


WRONG = {
    "": "--mode=analyze: nothing is asked; give at least one of --tokens, --words, --neighbours, --analogy",
    "--words=alpha": "--words: 'alpha' alone; give several, or --neighbours=alpha",
    "--words=,": "--words: ','; expected comma-separated words",
    "--words=alpha,alpa": "--words: 'alpa' is not one of the ",
    "--neighbours=alpa": "of the vocabulary; did you mean 'alpha'",
    "--analogy=alpha,beta": "--analogy: 'alpha,beta'; expected three words a,b,c for a - b + c",
    "--analogy=alpha,beta,xyz": "--analogy: 'xyz' is not one of the ",
    "--analogies=nowhere.txt": "--analogies: nowhere.txt: cannot be read (No such file or directory)",
    "--contexts=text": "--contexts: which word? --words=bank, say",
    "--map=map.gif": "--map: map.gif; expected a name that ends in .png, .svg, .pdf",
    "--map=nowhere/map.png": "--map: there is no folder 'nowhere'",
    "--words=alpha,beta --map=map.png": "--map: 2 vectors; expected at least 3",
    "--words=beta --contexts=beta": "--contexts: a run of word_embedding has no contextual vectors",
    "--neighbors=alpha": "--neighbors=alpha: no such flag; did you mean --neighbours?",
    "--prompt=alpha --words=a,b": "--prompt: only --mode=predict, score, embed and inspect take it",
}


@pytest.mark.parametrize("flags", WRONG)
def test_what_cannot_be_answered(capfd, words, flags):
    assert WRONG[flags] in fails(capfd, words, *flags.split())


def test_contexts_without_the_word(capfd, letters, tmp_path):
    error = fails(capfd, letters, "--words=beta", "--contexts=sentences.txt")
    assert error.startswith("--contexts: the text 'sentences.txt', which is not a file, has 'beta' 0 times")
    long = "alpha " * 15 + "beta. beta"
    (tmp_path / "long.txt").write_text(long)
    error = fails(capfd, letters, "--words=beta", f"--contexts={tmp_path / 'long.txt'}")
    assert error == "--contexts: a sentence of 100 characters is too long for the model"
    (tmp_path / "latin.txt").write_bytes("é".encode("latin1"))
    assert fails(capfd, letters, "--words=beta", f"--contexts={tmp_path / 'latin.txt'}").endswith("not UTF-8")


def test_flags_of_analysis_are_for_analysis_only(capfd, words):
    assert launch.main([f"--workdir={words}", "--mode=evaluate", "--words=a,b"]) == 2
    assert "--words: only --mode=analyze takes it" in capfd.readouterr().err
