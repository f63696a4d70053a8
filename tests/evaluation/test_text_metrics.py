"""Metrics of written texts against the libraries' own results, with several references and intervals."""

import math

import numpy as np
import pytest

from transformer.errors import UserError
from transformer.evaluation.text import METRICS, make_metrics, metric_names
from transformer.evaluation.text.span_scores import SquadMetric
from transformer.evaluation.text.text_metric import MetricOptions, intervals
from transformer.evaluation.text.written_text import GenerationEvaluator

OPTIONS = MetricOptions()
WORDS = ["the", "a", "dog", "walked", "home", "again", "and", "then", "slept,", "night.", "Über", "123", "."]


def corpus(rng, count: int = 12, most: int = 3) -> tuple[list[str], list[list[str]]]:
    """Texts with one to `most` references, each the text with other words here and there."""
    texts, references = [], []
    for _ in range(count):
        words = rng.choice(WORDS, rng.integers(6, 16))
        texts.append(" ".join(words))
        changed = [np.where(rng.random(len(words)) < 0.7, words, rng.choice(WORDS, len(words)))]
        changed += [rng.permutation(changed[0]) for _ in range(rng.integers(0, most))]
        references.append([" ".join(each) for each in changed])
    return texts, references


def streams(references: list[list[str]]) -> list[list[str | None]]:
    """As sacreBLEU takes them: the first of every text, the second of every text ..."""
    most = max(map(len, references))
    return [[given[i] if i < len(given) else None for given in references] for i in range(most)]


def libraries(texts, references, name: str) -> float:
    """The score by what users call themselves."""
    from rouge_score.rouge_scorer import RougeScorer
    from sacrebleu.metrics import BLEU, CHRF

    if name in ("bleu", "chrf", "chrf++"):
        metric = {"bleu": BLEU, "chrf": CHRF, "chrf++": lambda: CHRF(word_order=2)}[name]()
        return metric.corpus_score(texts, streams(references)).score
    if name == "exact_match":
        return 100 * float(np.mean([text in given for text, given in zip(texts, references, strict=True)]))
    scorer = RougeScorer([name], use_stemmer=True)
    pairs = zip(texts, references, strict=True)
    return 100 * float(np.mean([scorer.score_multi(given, text)[name].fmeasure for text, given in pairs]))


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_is_the_librarys(rng, name):
    texts, references = corpus(rng)
    references[0].append(texts[0])
    found = METRICS[name](OPTIONS).measure(texts, references)
    assert all(type(score) is float for score in found.values())
    kinds = ("rouge1", "rouge2", "rougeL") if name == "rouge" else (name,)  # rougeLsum is tested beside them
    for kind in kinds:
        assert found[kind] == pytest.approx(libraries(texts, references, kind), abs=1e-6)


@pytest.mark.parametrize("name", METRICS)
def test_more_references_never_harm_and_a_text_that_is_one_is_perfect(rng, name):
    texts, references = corpus(rng)
    metric = METRICS[name](OPTIONS)
    for score in metric.measure(
        texts, [[*given, text] for text, given in zip(texts, references, strict=True)]
    ).values():
        assert score == pytest.approx(100)
    alone = metric.measure(texts, [given[:1] for given in references])
    if name != "bleu":  # whose nearest reference length may come to be longer than the text
        together = metric.measure(texts, references)
        assert all(together[kind] >= alone[kind] - 1e-9 for kind in alone)


@pytest.mark.parametrize("name", METRICS)
def test_an_interval_is_that_of_texts_drawn_again(rng, name):
    """The percentiles of the scores of corpora that are drawn, and each scored as a whole."""
    texts, references = corpus(rng, 20)
    metric = METRICS[name](OPTIONS)
    statistics = metric.statistics(texts, references)
    draws = np.random.default_rng(3).integers(20, size=(1000, 20))
    scores = [metric.scores(statistics[drawn].sum(axis=0), 20) for drawn in draws]
    for drawn, expected in zip(draws[:10], scores, strict=False):
        whole = metric.measure([texts[i] for i in drawn], [references[i] for i in drawn])
        assert whole == pytest.approx(expected)
    found = intervals(metric, statistics, seed=3)
    for kind in scores[0]:
        limits = np.percentile([each[kind] for each in scores], [2.5, 97.5])
        assert found[kind] == pytest.approx(tuple(limits))
    assert found == intervals(metric, statistics, seed=3)


def test_an_interval_holds_what_it_should(rng):
    """Of a share p of n the normal approximation: p +- 1.96 sqrt(p (1 - p) / n)."""
    texts = ["yes"] * 70 + ["no"] * 30
    metric = METRICS["exact_match"](OPTIONS)
    ((low, high),) = intervals(metric, metric.statistics(texts, [["yes"]] * 100)).values()
    half = 100 * 1.96 * np.sqrt(0.7 * 0.3 / 100)
    assert low == pytest.approx(70 - half, abs=2) and high == pytest.approx(70 + half, abs=2)


def test_signatures_say_how_many_references_and_which_words():
    one, some = [["a"], ["b"]], [["a"], ["b", "c"]]
    metric = METRICS["bleu"](OPTIONS)
    assert "nrefs:1|" in metric.signature(one) and "tok:13a" in metric.signature(one)
    assert "nrefs:var|" in metric.signature(some) and "nrefs:1|" in metric.signature(one)
    assert "tok:char" in METRICS["bleu"](MetricOptions("char")).signature(one)
    assert "nw:2" in METRICS["chrf++"](OPTIONS).signature(one)


def test_bleu_counts_the_words_of_its_tokenizer():
    texts, references = ["世界你好吗"], [["世界你好"]]
    by_word = METRICS["bleu"](OPTIONS).measure(texts, references)["bleu"]
    assert METRICS["bleu"](MetricOptions("zh")).measure(texts, references)["bleu"] > 50 > by_word


def test_names_of_metrics():
    assert metric_names("bleu, chrf++") == ["bleu", "chrf++"] and metric_names("none") == []
    assert [type(each) for each in make_metrics("rouge", OPTIONS)] == [METRICS["rouge"]]
    for wrong in ("blue", "bleu,none", "bleu,bleu", ""):
        with pytest.raises(UserError, match=r"^metric: .*bleu, chrf, chrf\+\+, rouge, exact_match"):
            metric_names(wrong)


def test_an_evaluator_scores_what_is_generated_and_says_how(rng):
    texts, references = corpus(rng)
    asked = []

    def generate(params, sources):
        asked.append((params, list(sources)))
        return [texts[i] for i in sources]

    metrics = [*make_metrics("bleu,chrf", OPTIONS), SquadMetric()]
    evaluator = GenerationEvaluator(generate, range(9), references[:9], metrics, lambda: "9 of 1,200 pairs")
    found = evaluator("parameters")
    assert asked == [("parameters", list(range(9)))]
    expected = [metric.measure(texts[:9], references[:9]) for metric in metrics]
    assert found == {name: pytest.approx(score) for each in expected for name, score in each.items()}
    texts[4] = texts[7] = " "
    evaluator("parameters")
    assert evaluator.describe()["measured"] == "9 of 1,200 pairs; the generated text of 2 is empty"
    texts[4] = texts[7] = "something"
    evaluator("parameters")
    said = evaluator.describe()
    assert said.keys() == {"measured", *found} and said["measured"] == "9 of 1,200 pairs"
    assert said["bleu"].startswith("95 % interval ") and "tok:13a" in said["bleu"]
    low, high = intervals(metrics[1], metrics[1].statistics(texts[:9], references[:9]))["chrf"]
    assert f"{low:.4g} to {high:.4g} (bootstrap over 9 texts)" in said["chrf"]


def test_where_nothing_is_written_there_is_no_score():
    metrics = make_metrics("bleu,chrf", OPTIONS)
    references = [["a b c d"], ["e"]]
    evaluator = GenerationEvaluator(
        lambda params, sources: ["", " "], range(2), references, metrics, lambda: "2 of 2"
    )
    found = evaluator("parameters")
    assert set(found) == {"bleu", "chrf"} and all(math.isnan(score) for score in found.values())
    said = evaluator.describe()
    assert said == {"measured": "2 of 2; the generated text of 2 is empty"}
    empty = GenerationEvaluator(
        lambda params, sources: ["", ""], range(2), [[""], ["e"]], [SquadMetric()], str, True
    )
    assert empty("parameters")["exact_match"] == 50
    with pytest.raises(UserError, match="the split has 0 pairs"):
        GenerationEvaluator(lambda params, sources: [], [], [], metrics, str)
