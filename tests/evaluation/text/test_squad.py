import pytest

from transformer.evaluation.text.span_scores import SquadMetric, exact_match, f1, normalize


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("The  Broncos'\n", "broncos"),
        ("a banana and an apple", "banana and apple"),
        ("theatre, Anna", "theatre anna"),  # articles are whole words
        ("$1,000.50", "100050"),
        ("U.S.", "us"),
        ("the-end", "theend"),  # punctuation goes before articles
        ("«é»", "«é»"),  # other than ASCII's stays
        ("?!", ""),
    ],
)
def test_normalisation_is_the_official_one(answer, expected):
    assert normalize(answer) == expected


@pytest.mark.parametrize(
    ("answer", "reference", "match", "f"),
    [
        ("Denver Broncos", "the Denver Broncos!", 1, 1),
        ("Broncos", "Denver Broncos", 0, 2 / 3),  # P 1, R 1/2
        ("the team of Denver", "Denver Broncos", 0, 2 / 5),  # P 1/3, R 1/2
        ("to be or not to be", "to be to go", 0, 2 * 3 / 10),  # to, be, to are shared: P 3/6, R 3/4
        ("Carolina", "Denver", 0, 0),
        ("", "", 1, 1),
        ("Denver", "", 0, 0),
        ("", "Denver", 0, 0),
        ("the", "a", 1, 1),
    ],
)
def test_scores_worked_out_by_hand(answer, reference, match, f):
    assert exact_match(answer, reference) == match
    assert f1(answer, reference) == pytest.approx(f)
    assert f1(reference, answer) == pytest.approx(f)


def test_the_best_reference_counts_and_all_questions_are_averaged():
    answers = ["Santa Clara", "gold", "x"]
    references = [["Santa Clara, California", "Levi's Stadium"], ["golden", "Gold."], ["y z", "x y"]]
    # F1 of the first: P 1, R 2/3, so 4/5; of the last: P 1, R 1/2, so 2/3.
    found = SquadMetric().measure(answers, references)
    assert found == {
        "exact_match": pytest.approx(100 / 3),
        "f1": pytest.approx(100 * (4 / 5 + 1 + 2 / 3) / 3),
    }


@pytest.mark.parametrize(
    ("answer", "references", "match", "f"),
    [
        ("", ["A", "vitamin A"], 0, 0),  # it is not a question without an answer
        ("A", ["A", "vitamin A"], 0, 0),
        ("vitamin", ["A", "vitamin A"], 100, 100),
        ("", ["A", "?"], 100, 100),
        ("", [""], 100, 100),
    ],
)
def test_references_of_articles_and_punctuation_alone_count_as_the_official_script_has_it(
    answer, references, match, f
):
    assert SquadMetric().measure([answer], [references]) == {"exact_match": match, "f1": f}
