import numpy as np
import pytest

from transformer.errors import UserError
from transformer.evaluation import embeddings
from transformer.evaluation.embeddings import Answers, WordVectors, read_questions


def made(rng, count=40, d=5) -> tuple[WordVectors, dict[str, np.ndarray]]:
    """Random vectors, and the same by word in float64."""
    words = [f"w{i}" for i in range(count)]
    vectors = rng.normal(size=(count, d)).astype(np.float32)
    return WordVectors(words, vectors), {w: x.astype(np.float64) for w, x in zip(words, vectors, strict=True)}


def cosine(x: np.ndarray, y: np.ndarray) -> float:
    return float(x @ y / np.sqrt((x @ x) * (y @ y)))


def test_similarities_are_cosines(rng):
    vectors, by_word = made(rng)
    words = [str(word) for word in rng.choice(vectors.words, 6)]
    expected = [[cosine(by_word[a], by_word[b]) for b in words] for a in words]
    np.testing.assert_allclose(vectors.similarity(words), expected, atol=1e-5)


def test_the_nearest_are_those_of_all(rng):
    vectors, by_word = made(rng)
    for word in ("w3", "w17"):
        ranked = sorted(by_word, key=lambda each: -cosine(by_word[word], by_word[each]))
        found = vectors.nearest(word, 7)
        assert ranked[0] == word and [each for each, _ in found] == ranked[1:8]
        assert [near for _, near in found] == pytest.approx(
            [cosine(by_word[word], by_word[each]) for each in ranked[1:8]], abs=1e-5
        )
        by_vector = vectors.nearest(by_word[word] * 3, 7)
        assert [each for each, _ in by_vector] == ranked[:7]
    assert len(vectors.nearest("w0", 1000)) == 39
    assert "w5" not in dict(vectors.nearest("w0", 1000, exclude=["w5", "w5"]))


def test_an_analogy_is_the_nearest_to_a_minus_b_plus_c_without_these(rng):
    vectors, by_word = made(rng)
    units = {word: x / np.linalg.norm(x) for word, x in by_word.items()}
    for _ in range(20):
        a, b, c = (str(word) for word in rng.choice(vectors.words, 3))
        target = units[a] - units[b] + units[c]
        ranked = sorted(set(units) - {a, b, c}, key=lambda each: -cosine(target, units[each]))
        found = vectors.analogy(a, b, c, 3)
        assert [word for word, _ in found] == ranked[:3]
        assert found[0][1] == pytest.approx(cosine(target, units[ranked[0]]), abs=1e-5)


def test_a_parallelogram_is_found():
    corners = {
        "man": [1, 0, 0],
        "woman": [1, 1, 0],
        "king": [1, 0, 1],
        "queen": [1, 1, 1],
        "other": [-1, 0, 0.5],
    }
    vectors = WordVectors([*corners], np.array([*corners.values()], np.float32))
    assert vectors.analogy("king", "man", "woman", 1)[0][0] == "queen"
    assert vectors.nearest(vectors["king"] - vectors["man"] + vectors["woman"], 1)[0][0] in ("queen", "king")


def test_questions_are_answered_as_counted_by_hand(rng, monkeypatch):
    monkeypatch.setattr(embeddings, "AT_ONCE", 7)
    vectors, _ = made(rng)
    questions: dict[str, list] = {"first": [], "second": [], "unknown": [("w0", "w1", "w2", "no")]}
    right = {name: 0 for name in questions}
    for number in range(60):
        a, b, c = (str(word) for word in rng.choice(vectors.words, 3, replace=False))
        section = "first" if number % 3 else "second"
        best = vectors.analogy(b, a, c, 2)  # a : b as c : best
        d = best[number % 2][0]
        questions[section].append((a, b, c, d))
        right[section] += number % 2 == 0
    questions["first"] += [("w0", "w1", "w2", "w2"), ("W9", "w1", "w2", "w3")]  # an input; unknown
    found = vectors.evaluate(questions)
    assert found["first"] == Answers(len(questions["first"]), len(questions["first"]) - 1, right["first"])
    assert found["second"] == Answers(20, 20, right["second"])
    assert found["unknown"] == Answers(1, 0, 0) and np.isnan(found["unknown"].accuracy)
    total = found["first"] + found["second"]
    assert (total.questions, total.covered, total.right) == (62, 61, 30)
    assert total.accuracy == pytest.approx(30 / 61)


def test_words_are_found_in_any_form_that_is_read_as_them(rng):
    vectors = WordVectors(["athens", "greece", "rome", "italy"], rng.normal(size=(4, 3)), str.lower)
    assert "Athens" in vectors and "Paris" not in vectors
    np.testing.assert_array_equal(vectors["ATHENS"], vectors["athens"])
    assert "athens" not in dict(vectors.nearest("Athens"))
    assert vectors.evaluate({"": [("Athens", "Greece", "Rome", "Italy")]})[""] == Answers(1, 1, 1)


def test_an_unknown_word_is_an_error_that_names_near_ones(rng):
    vectors = WordVectors(["python", "pylon", "java"], rng.normal(size=(3, 2)))
    with pytest.raises(UserError) as error:
        vectors["pythn"]
    message = "'pythn' is not one of the 3 words of the vocabulary; did you mean 'python' or 'pylon'?"
    assert str(error.value) == message
    with pytest.raises(UserError, match=r"'zzz' is not .*; and nothing like it"):
        vectors.analogy("java", "zzz", "python")


def test_a_vector_of_zeros_is_near_to_nothing(rng):
    vectors = WordVectors(["none", "a", "b"], np.array([[0, 0], [1, 0], [-1, 2]], np.float32))
    assert vectors.similarity(["none", "a"]).tolist() == [[0, 0], [0, 1]]
    assert all(near == 0 for _, near in vectors.nearest("none"))


def test_vectors_that_do_not_fit_their_words():
    for words in (["a"], ["a", "a"]):
        with pytest.raises(ValueError, match="1 different words"):
            WordVectors(words, np.ones((2, 3)))


def test_questions_are_read(tmp_path):
    file = tmp_path / "questions.txt"
    file.write_text(
        ": capitals\nAthens Greece  Rome Italy\n\n: family\nking queen man woman\nboy girl he she\n"
    )
    assert read_questions(file) == {
        "capitals": [("Athens", "Greece", "Rome", "Italy")],
        "family": [("king", "queen", "man", "woman"), ("boy", "girl", "he", "she")],
    }
    found = read_questions(file)
    file.write_text(file.read_text(), encoding="utf-8-sig")
    assert read_questions(file) == found


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b": a\none two three\n", r"q.txt:2: 3 words; expected four, or ': section'$"),
        (b": a\n", r"q.txt: no questions in it"),
        (b"\xff\xfe\n", r"q.txt: cannot be read \(not UTF-8\)"),
        (None, r"q.txt: cannot be read \(No such file or directory\)"),
    ],
)
def test_files_without_questions(tmp_path, content, message):
    if content is not None:
        (tmp_path / "q.txt").write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_questions(tmp_path / "q.txt")
