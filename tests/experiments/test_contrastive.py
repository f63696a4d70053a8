"""Contrastive runs: microbatches are exact and save memory, negatives are those of the whole batch, and
evaluators are those of brute force."""

import functools
import json

import jax
import numpy as np
import pytest

from experiments.contrastive import Contrastive, ImageText
from experiments.evaluation.vector_scores import Retrieval, Similarity, ZeroShot
from transformer.errors import UserError
from transformer.evaluation.ranking import ndcg_at, rank_relevant, recall_at, spearman
from transformer.training.losses.info_nce import info_nce
from transformer.training.run import Run
from workdir import embed, opening

pytestmark = pytest.mark.usefixtures("in_root")

TEXT, IMAGES = "configs/studies/search/functions.py:tiny", "configs/studies/search/digits.py:tiny"
PLAIN = {"model.dropout": "0", "train.batch_size": "8", "evaluate.batch_size": "8", "loss.widths": "(8, 16)"}
PLAIN |= {"loss.learnt_temperature": "true", "loss.symmetric": "true"}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """A table of queries, passages and hard negatives, some of them copies, some empty, some too long."""
    rows = [(f"query {i}", f"the passage of {i}", f"another of {i + 1}") for i in range(120)]
    rows[3], rows[4] = ("query 3", "the passage of 2", "x"), ("", "nothing", "x")
    rows[5], rows[6] = ("query 2", "the passage of 6", ""), ("query " * 30, "the passage of 7", "y")
    path = tmp_path_factory.mktemp("pairs") / "pairs.tsv"
    path.write_text("\n".join(map("\t".join, [("query", "passage", "far"), *rows])) + "\n")
    return path


def made(config, tmp_path, pairs=None, devices=1, **changes):
    """A run and its first parameters."""
    given = PLAIN | {key.replace("__", "."): str(value) for key, value in changes.items()}
    if pairs is not None:
        fields = {"query_field": "query", "passage_field": "passage", "negative_fields": "far", "overlap": 1}
        given |= {f"data.{key}": str(value) for key, value in fields.items()}
        given["data.source"] = f"tsv:{pairs}"
    values = opening.read_config(config)
    frozen = opening.check_config(values, list(given.items()))
    kind = {"contrastive": Contrastive, "image_text": ImageText}[frozen.experiment]
    run = Run(kind(frozen), frozen, tmp_path / "run", devices=jax.devices()[:devices])
    with run.placed():
        return run, run.first_state().params


def gradients(run, params, batch):
    def total(params):
        terms = run.experiment.loss(params, batch, jax.random.key(1), True)
        return terms["loss"].total / terms["loss"].weight, terms

    return jax.jit(jax.value_and_grad(total, has_aux=True))


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("config", [TEXT, IMAGES])
def test_microbatches_have_the_loss_and_the_gradient_of_the_batch(config, tmp_path, pairs):
    found = {}
    for parts in (1, 2, 4):
        more = {"pairs": pairs} if config == TEXT else {}
        run, params = made(config, tmp_path, **more, parallel__microbatches=parts)
        batch = run.experiment.loader("train").batch_at(0)
        found[parts] = jax.device_get(gradients(run, params, batch)(params))
    (expected, terms), gradient = found[1]
    assert {"loss_of_8", "loss_of_16", "loss_of_32", "temperature"} < {*terms}
    assert np.abs(gradient["log_scale"]) > 1e-3
    for parts in (2, 4):
        (loss, _), other = found[parts]
        assert loss == pytest.approx(expected, rel=1e-5)
        largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(gradient))
        bound = {"rtol": 1e-4, "atol": 1e-5 * float(largest)}
        jax.tree.map(functools.partial(np.testing.assert_allclose, **bound), other, gradient)


@pytest.mark.thorough
def test_dropout_is_that_of_the_forward_pass_in_the_backward_pass(tmp_path, pairs, monkeypatch):
    """The gradient is that without computing again; and an equal text has other dropout as a passage."""
    changes = {"model__dropout": 0.5, "parallel__microbatches": 2}
    run, params = made(TEXT, tmp_path, pairs, **changes)
    batch = run.experiment.loader("train").batch_at(0)
    again = gradients(run, params, batch)(params)
    monkeypatch.setattr(jax, "checkpoint", lambda function: function)
    at_once = gradients(run, params, batch)(params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), again, at_once)
    monkeypatch.undo()
    run, params = made(TEXT, tmp_path, pairs, model__dropout=0.5, data__passage_field="query")
    batch = run.experiment.loader("train").batch_at(0)
    read = lambda train: run.experiment.read(params, batch, jax.random.key(2), train)  # noqa: E731
    queries, passages = jax.jit(read, static_argnums=0)(True)
    assert np.abs(queries - passages[:, 0]).max() > 0.1


@pytest.mark.thorough
def test_microbatches_save_memory(tmp_path, pairs):
    sizes = {}
    for parts in (1, 8):
        keys = {"data__query_length": 64, "data__passage_length": 64, "model__num_layers": 4}
        run, params = made(TEXT, tmp_path, pairs, parallel__microbatches=parts, **keys)
        batch = run.experiment.loader("train").batch_at(0)
        sizes[parts] = gradients(run, params, batch).lower(params).compile().memory_analysis()
    assert sizes[8].temp_size_in_bytes < 0.5 * sizes[1].temp_size_in_bytes


@pytest.mark.thorough
def test_negatives_are_those_of_all_devices(tmp_path, pairs):
    """With two devices, and with microbatches in addition, the step is that of one."""
    found = []
    sgd = {"optimizer__name": "sgd", "optimizer__schedule": "constant", "optimizer__warmup_steps": 0}
    for devices, parts in ((1, 1), (4, 1), (4, 2)):
        run, _ = made(TEXT, tmp_path, pairs, devices, parallel__microbatches=parts, **sgd)
        with run.placed():
            batch = run.put(run.loader.batch_at(0))
            state, terms = run.jitted()(run.first_state(), batch)
            found.append((terms["loss"].mean, jax.device_get(state.params)))
    for loss, params in found[1:]:
        assert float(loss) == pytest.approx(float(found[0][0]), rel=1e-5)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), params, found[0][1])


def test_rows_are_pairs_with_ids(tmp_path, pairs):
    run, _ = made(TEXT, tmp_path, pairs, data__validation_source=f"tsv:{pairs}", data__query_length=12)
    data = run.experiment.data
    rows, texts = data.rows("train"), data.sources("train")
    assert len(rows) == 119 and rows.tally == {"packed": 119, "empty": 1, "truncated": 1}
    batch = rows.batch(np.array([2, 3, 4, 5, -1]))
    tokens, special = data.tokenizer, data.special_tokens
    expected = [special.cls, *tokens.encode("query 2"), special.sep]
    np.testing.assert_array_equal(batch["queries"][0, : len(expected)], expected)
    assert batch["query_lengths"].tolist() == [9, 9, 9, 12, 0] and batch["queries"][3, -1] == special.sep
    assert batch["query_ids"][0] == batch["query_ids"][2] != batch["query_ids"][1]  # query 2
    ids = batch["passage_ids"]
    assert ids[0, 0] == ids[1, 0] and ids[2, 1] == -1 and batch["passage_lengths"][2, 1] == 2
    assert (batch["query_ids"][4], *ids[4], batch["weights"][4]) == (-1, -1, -1, 0)
    assert len({*ids[ids >= 0]}) == 6 and texts[2].text(1) == "another of 2"
    assert [n.tolist() for n in rows.documents(np.array([4, -1]))] == [[5], []]
    blank = data.blank()
    assert {name: array.shape[1:] for name, array in blank.items()} == {
        name: array.shape[1:] for name, array in batch.items()
    }


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("config", [TEXT, IMAGES])
def test_retrieval_is_that_of_brute_force(config, tmp_path, pairs):
    more = {"pairs": pairs, "data__validation_source": f"tsv:{pairs}"} if config == TEXT else {}
    run, params = made(config, tmp_path, **more, train__evaluate_batches=0)
    experiment = run.experiment
    with run.placed():
        evaluator = Retrieval(experiment, run.put, "validation")
        measured = evaluator(params)
    rows = experiment.data.rows("validation")
    batch = rows.batch(np.arange(len(rows)))
    queries, passages = jax.jit(experiment.read)(params, batch, jax.random.key(0))
    queries, passages = np.float64(queries), np.float64(passages)
    by_query, corpus = {}, {}
    for i, query in enumerate(batch["query_ids"]):
        by_query.setdefault(query, (queries[i], []))[1].append(batch["passage_ids"][i, 0])
        for k, number in enumerate(batch["passage_ids"][i]):
            if number >= 0:
                corpus.setdefault(number, passages[i, k])
    totals = {name: [] for name in ("loss", "recall@1", "recall@5", "recall@10", "ndcg@10")}
    for query, answers in by_query.values():
        score = {number: float(query @ passage) for number, passage in corpus.items()}
        order = sorted(score, key=lambda number: -score[number])
        for k in (1, 5, 10):
            totals[f"recall@{k}"].append(np.mean([answer in order[:k] for answer in {*answers}]))
        gains = [(number in answers) / np.log2(2 + rank) for rank, number in enumerate(order[:10])]
        totals["ndcg@10"].append(sum(gains) / sum(1 / np.log2(2 + r) for r in range(len({*answers}))))
        scale = np.exp(float(params["log_scale"]))
        wrong = [np.exp(scale * s) for number, s in score.items() if number not in answers]
        own = [np.exp(scale * score[answer]) for answer in {*answers}]
        totals["loss"].append(np.mean([-np.log(x / (x + sum(wrong))) for x in own]))
    for name, values in totals.items():
        assert measured[name] == pytest.approx(np.mean(values), rel=1e-4), name
    assert [*measured] == evaluator.names(params)
    assert evaluator.describe()["measured"] == f"{len(by_query)} queries in {len(corpus)} passages"
    with run.placed():
        numbers = run.experiment.evaluators(run.put)["eval"](params)
    assert numbers == measured


def test_rankings_are_those_of_scipy_and_scikit_learn(rng):
    from scipy.stats import spearmanr
    from sklearn.metrics import ndcg_score

    x, y = rng.integers(0, 5, 40), rng.normal(size=40).round(1)
    assert spearman(x, y) == pytest.approx(spearmanr(x, y).statistic)
    assert np.isnan(spearman(np.ones(4), y[:4]))
    score, truth = rng.normal(size=(300, 30)), rng.uniform(size=(300, 30)) < 0.1
    truth[:, 0] |= ~truth.any(axis=1)
    ranks = rank_relevant(score, np.eye(30), [np.flatnonzero(row) for row in truth])
    np.testing.assert_allclose(np.mean(ndcg_at(10, ranks)), ndcg_score(truth, score, k=10))
    order = np.argsort(-score, axis=1)
    for k in (1, 5):
        first = np.take_along_axis(truth, order[:, :k], axis=1)
        np.testing.assert_allclose(recall_at(k, ranks), first.sum(axis=1) / truth.sum(axis=1))


def test_equal_scores_are_ranked_in_their_order():
    (ranks,) = rank_relevant(np.ones((1, 1)), np.ones((4, 1)), [np.array([0, 2])])
    assert ranks.tolist() == [1, 3]


def written(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


@pytest.mark.thorough(but=1)
def test_similarity_and_classes_without_training(tmp_path, pairs, rng):
    from scipy.stats import spearmanr

    run, params = made(TEXT, tmp_path, pairs)
    records = [{"first": f"a {i}", "second": f"b {i * i}", "score": float(rng.normal())} for i in range(20)]
    similarity = Similarity(run.experiment, run.put, "test", written(tmp_path / "s.jsonl", records))
    first, second = (embed(run, params, [r[name] for r in records]) for name in ("first", "second"))
    scores = [record["score"] for record in records]
    expected = spearmanr((first * second).sum(axis=1), scores).statistic
    with run.placed():
        assert similarity(params) == {"spearman": pytest.approx(expected, abs=1e-3)}
    assert "95 % interval" in similarity.describe()["spearman"]
    records = [{"text": f"the {i}", "label": ("even", "odd")[i % 2]} for i in range(12)]
    zero = ZeroShot(run.experiment, run.put, "test", written(tmp_path / "z.jsonl", records))
    cosine = embed(run, params, [r["text"] for r in records]) @ embed(run, params, ["even", "odd"]).T
    with run.placed():
        assert zero(params) == {"accuracy": np.mean(cosine.argmax(axis=1) == np.arange(12) % 2)}
    for kind, wrong, message in (
        (Similarity, {"first": "a", "second": "b", "score": "high"}, "score: could not convert"),
        (ZeroShot, {"text": "a", "label": "one"}, "one label, 'one'; expected several"),
        (ZeroShot, {"text": "a"}, "no field 'label'"),
    ):
        with pytest.raises(UserError, match=message):
            kind(run.experiment, run.put, "test", written(tmp_path / "w.jsonl", [wrong, wrong]))


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (TEXT, {"loss.widths": "(8, 32)"}, r"loss.widths: \(8, 32\); expected numbers from 1 to 31"),
        (TEXT, {"data.passage_length": "9999"}, "data.passage_length: 9999 is longer than model.max_length"),
        (
            TEXT,
            {"data.query_length": "2"},
            r"query_length: 2; expected at least 3: \[CLS\], a token, \[SEP\]",
        ),
        (IMAGES, {"data.names": "('a', 'b')"}, "data.names: 2 names; expected 10, one for each class"),
        (IMAGES, {"data.tokenizer": "nothing"}, "data.tokenizer: 'nothing' is not a file; expected one, or"),
        (
            IMAGES,
            {"data.tokenizer": "bpe", "data.vocab_size": "9"},
            "data.vocab_size: 9; bpe needs at least 257",
        ),
        (IMAGES, {"image.patch_size": "3"}, "image.patch_size: 3 does not divide data.image_size 8"),
        (IMAGES, {"image.lora_rank": "2"}, "image.lora_rank: 2; expected 0: the image tower has none"),
        (IMAGES, {"image.head_dropout": "0.1"}, "image.head_dropout: 0.1; expected 0.0: the image tower"),
    ],
)
def test_a_mistake_in_the_config_is_one_line(config, changes, message):
    with pytest.raises(UserError, match=message):
        values = opening.read_config(config)
        frozen = opening.check_config(values, list(changes.items()))
        opening.find_experiment(frozen.experiment)(frozen)


def test_captions_are_texts_of_their_own(tmp_path):
    """Without names, the label of an image is its text, also one that training does not have."""
    run, _ = made(IMAGES, tmp_path, data__names="()", data__tokenizer="characters")
    rows = run.experiment.data.rows("validation")
    batch = rows.batch(np.array([0, 1, -1]))
    decoded = [
        run.experiment._shown(t, n)
        for t, n in zip(batch["passages"][:2], batch["passage_lengths"][:2], strict=True)
    ]
    assert all(text in map(str, range(10)) for text in decoded)
    assert batch["passage_ids"][2, 0] == batch["query_ids"][2] == -1 and batch["passage_lengths"][2, 0] == 0


def test_widths_are_first_dimensions_of_length_1(tmp_path, pairs):
    """The loss is the mean over the widths and all dimensions, of vectors that are normalised again."""
    run, params = made(TEXT, tmp_path, pairs)
    experiment, batch = run.experiment, run.experiment.loader("train").batch_at(0)
    terms = jax.jit(lambda: experiment.loss(params, batch, jax.random.key(0), False))()
    queries, passages = jax.jit(lambda: experiment.read(params, batch, jax.random.key(0)))()
    losses = []
    for width in (8, 16, 32):
        parts = [np.asarray(x)[..., :width] for x in (queries, passages)]
        parts = [x / np.linalg.norm(x, axis=-1, keepdims=True) for x in parts]
        ids = batch["query_ids"], batch["passage_ids"]
        losses.append(float(info_nce(*parts, *ids, experiment.scale(params), True)[0].mean()))
        assert float(terms[f"loss_of_{width}"].mean) == pytest.approx(losses[-1], rel=1e-4)
    assert float(terms["loss"].mean) == pytest.approx(np.mean(losses), rel=1e-4)
