"""A text classifier, as a user trains, measures and uses it."""

import json
import random
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

import launch
from experiments import find_experiment
from tests import runs
from transformer.errors import UserError
from transformer.training import parallel
from workdir import opening
from workdir.opening import read_config

pytestmark = pytest.mark.usefixtures("in_root")

WORDS = {"gut ✓": ["lovely", "superb"], "schlecht": ["awful", "dull"]}
FILLERS = ["the", "film", "was", "a", "story", "of", "two", "people", "in", "town", "that", "night"]


def write(path, count=600):
    """Texts of filling words and a word that tells the label, some with tabs and ends of lines in them."""
    draw = random.Random(0)
    with open(path, "w", encoding="utf-8") as file:
        for number in range(count):
            label = draw.choice([*WORDS])
            words = draw.choices(FILLERS, k=draw.randrange(2, 12))
            words.insert(draw.randrange(len(words) + 1), draw.choice(WORDS[label]))
            text = draw.choice(["\t", "\n", " ", " "]).join([f"{number}", *words])
            file.write(json.dumps({"text": text, "label": label}) + "\n")


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("classifier")
    write(folder / "a.jsonl")
    return folder / "a.jsonl"


def test_a_classifier_of_pairs_is_given_pairs(tmp_path):
    (tmp_path / "a.tsv").write_text("text\tother\tlabel\n" + "".join(f"{i}\tb\t{i % 2}\n" for i in range(40)))
    keys = [("data.source", f"tsv:{tmp_path}/a.tsv"), ("data.second_field", "other")]
    config = opening.check_config(read_config("configs/classification.py:tiny"), keys)
    made = find_experiment("classification")(config)
    assert made.problem("one\ttwo") == made.problem("one\t") == ""
    expected = "has no tab: expected two texts, text and other, with a tab between them"
    assert made.problem("one") == expected
    with pytest.raises(UserError, match=f"^--prompt or --input: text 2 {expected}"):
        [*made.predict(None, ["one\ttwo", "one"])]


@pytest.fixture(scope="module")
def trained(texts):
    keys = {
        "data.source": f"jsonl:{texts}",
        "data.tokenizer": "words",
        "optimizer.learning_rate": "0.01",
        "optimizer.schedule": "constant",
        "train.steps": "60",
        "train.evaluate_batches": "0",
    }
    arguments = [f"--config.{key}={value}" for key, value in keys.items()]
    run = texts.parent / "run"
    assert launch.main(["--config=configs/classification.py:tiny", f"--workdir={run}", *arguments]) == 0
    return run


@pytest.mark.thorough
def test_it_learns_to_tell_texts_that_it_has_not_seen(trained):
    last = json.loads((trained / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["eval/accuracy"] > 0.95 and last["eval/f1"] > 0.95 and last["eval/loss"] < 0.3


@pytest.mark.thorough
def test_what_was_found_is_drawn_and_said_also_where_the_best_is_kept(texts, tmp_path, capfd):
    arguments = [f"--config.data.source=jsonl:{texts}", "--config.train.keep_best=eval/loss"]
    workdir = tmp_path / "run"
    assert launch.main(["--config=configs/classification.py:tiny", f"--workdir={workdir}", *arguments]) == 0
    assert re.search(r"^validation accuracy [\d.]+% of \d+, macro F1", capfd.readouterr().out, re.MULTILINE)
    assert [*(workdir / "classes").glob("*.png")]


@pytest.mark.parametrize(
    ("first", "prompt"),
    [
        (["", " \n", "\n two people\nin town"], " two people"),
        (["a" * 99], "a" * 80),
        (["", " \n"], ""),
    ],
)
def test_the_text_to_try_is_one_with_content(texts, tmp_path, first, prompt):
    path = tmp_path / "validation.jsonl"
    records = ({"text": text, "label": "schlecht"} for text in first)
    path.write_text("".join(json.dumps(each) + "\n" for each in records))
    values = read_config("configs/classification.py:tiny")
    values["data"] |= {"source": f"jsonl:{texts}", "validation_source": f"jsonl:{path}", "tokenizer": "words"}
    config = opening.check_config(values)
    assert find_experiment(config.experiment)(config).example_flags() == [f"--prompt={prompt}"]


@pytest.mark.thorough
def test_evaluate_writes_what_it_predicts_of_a_split(trained, tmp_path, capfd):
    capfd.readouterr()
    output = tmp_path / "predictions.tsv"
    arguments = [f"--workdir={trained}", "--mode=evaluate"]
    assert launch.main([*arguments, "--split=test", f"--output={output}"]) == 0
    said = capfd.readouterr().out
    header, *lines = output.read_text(encoding="utf-8").splitlines()
    assert header.split("\t") == ["text", "label", "predicted", "p(gut ✓)", "p(schlecht)"]
    cells = [line.split("\t") for line in lines]
    assert all(len(each) == 5 for each in cells) and 10 < len(cells) < 60
    right = np.mean([each[1] == each[2] for each in cells])
    assert right == pytest.approx(float(re.search(r"eval/accuracy (\S+)", said)[1]), abs=1e-5)
    assert f"{len(cells)} of {len(cells)} examples" in said
    for text, label, predicted, *shares in cells:
        assert any(word in text for word in WORDS[label])
        assert sum(map(float, shares)) == pytest.approx(1, abs=1e-5)
        assert [*WORDS][int(np.argmax([float(share) for share in shares]))] == predicted
    assert any("\\t" in text for text, *_ in cells) and any("\\n" in text for text, *_ in cells)
    # The matrix as text has the same counts.
    table = said[said.index("eval/confusion") :].splitlines()[2:4]
    for label, line in zip(WORDS, table, strict=True):
        counts = [sum(each[1:3] == [label, other] for each in cells) for other in WORDS]
        assert [int(n) for n in re.findall(r" (\d+)(?= )", line)[:2]] == counts
    # Nothing that is read is written over, and no folder is missing only in the end.
    before = (trained.parent / "a.jsonl").read_bytes()
    for bad in (f"--output={trained.parent}/a.jsonl", f"--output={tmp_path}/none/x"):
        assert launch.main([*arguments, bad]) == 2
        assert capfd.readouterr().err.startswith("error: --output: ")
    assert (trained.parent / "a.jsonl").read_bytes() == before


@pytest.mark.thorough
def test_a_text_is_answered_alike_in_any_company(trained):
    """Neither other texts nor padding change a probability."""
    run, params = opening.load(trained)
    experiment = run.experiment
    texts = ["lovely", "the film was awful that night", "superb " + "story of " * 20]
    with run.placed():
        alone = [next(experiment.predict(params, [text])) for text in texts]
        together = list(experiment.predict(params, texts * 12))  # more than are read at once
    assert together == alone * 12
    for text, (answer,) in zip(texts, alone, strict=True):
        ((tokens, types),) = experiment.data.encoder_inputs(text)
        assert len(tokens) < experiment.config.data.sequence_length
        one = jnp.ones((1, len(tokens)), jnp.int32)
        inputs = tokens[None], one, types[None]
        logits = jax.jit(lambda p, a, b, c: experiment.model.apply({"params": p}, a, b, 1, types_bt=c))(
            params, *inputs
        )[0, 0]
        p = dict(zip(experiment.data.labels, np.asarray(jax.nn.softmax(logits)), strict=True))
        predicted, *shares = answer.split("\t")
        assert predicted == max(p, key=p.get)
        listed = {each.rpartition("=")[0]: float(each.rpartition("=")[2]) for each in shares}
        assert listed == pytest.approx(p, abs=6e-5)


@pytest.fixture(scope="module")
def windowed(texts):
    """A run whose rows have room for 6 words of texts of 4 to 13."""
    keys = {
        "data.source": f"jsonl:{texts}",
        "data.tokenizer": "words",
        "data.sequence_length": "8",
        "data.too_long": "windows",
        "data.stride": "4",
        "optimizer.learning_rate": "0.01",
        "optimizer.schedule": "constant",
        "train.steps": "20",
        "train.evaluate_batches": "0",
        "parallel.microbatches": "2",
        "train.batch_size": "16",
    }
    arguments = [f"--config.{key}={value}" for key, value in keys.items()]
    run = texts.parent / "windowed"
    assert launch.main(["--config=configs/classification.py:tiny", f"--workdir={run}", *arguments]) == 0
    return run


def probabilities(experiment, logits, text):
    """The mean over windows of 6 words that are read one by one."""
    ids = experiment.data.tokenizer.encode(text)
    count = 1 + -(-max(len(ids) - 6, 0) // 4)
    starts = [j * (len(ids) - 6) // max(count - 1, 1) if count > 1 else 0 for j in range(count)]
    special_tokens, found = experiment.data.special_tokens, []
    for start in starts:
        tokens = np.array([[special_tokens.cls, *ids[start : start + 6], special_tokens.sep]])
        found.append(logits(tokens)[0, 0])
    return np.mean(special.softmax(np.array(found), axis=-1), axis=0)


@pytest.mark.thorough
def test_evaluate_and_predict_average_the_windows_of_a_text(windowed, tmp_path, capfd):
    run, params = opening.load(windowed)
    experiment, params = run.experiment, jax.device_get(params)
    output, lines = tmp_path / "table.tsv", tmp_path / "lines.txt"
    capfd.readouterr()
    assert launch.main([f"--workdir={windowed}", "--mode=evaluate", f"--output={output}"]) == 0
    found = runs.measured(out := capfd.readouterr().out)
    texts = [(text, label) for (text,), label in experiment.data.texts("validation")]
    rows = experiment.data.rows("validation")
    assert len(rows.packed) > len(texts) > 20 and f"{len(texts)} of {len(texts)} examples" in out
    logits = jax.jit(lambda ids: experiment.model.apply({"params": params}, ids, jnp.ones_like(ids), 1))
    p_nc = np.array([probabilities(experiment, logits, text) for text, _ in texts])
    labels = [experiment.data.labels.index(label) for _, label in texts]
    assert found["eval/loss"] == pytest.approx(-np.log(p_nc[np.arange(len(texts)), labels]).mean(), rel=1e-4)
    assert found["eval/accuracy"] == pytest.approx((p_nc.argmax(axis=1) == labels).mean(), abs=1e-5)
    table = [line.split("\t") for line in output.read_text(encoding="utf-8").splitlines()[1:]]
    assert [line[1] for line in table] == [label for _, label in texts]
    np.testing.assert_allclose([[*map(float, line[3:])] for line in table], p_nc, atol=2e-5)
    # Lines of any length are answered in their order, an empty one too.
    lines.write_text("\n".join(["", *(" ".join(text.split()) for text, _ in texts), "superb film " * 500]))
    assert launch.main([f"--workdir={windowed}", "--mode=predict", f"--input={lines}"]) == 0
    out, err = capfd.readouterr()
    answers = [line.split("\t") for line in out.splitlines()]
    assert len(answers) == len(texts) + 2 and "longer" not in err
    listed = [dict(each.rsplit("=", 1) for each in answer[1:]) for answer in answers[1:-1]]
    found_nc = [[float(each[label]) for label in experiment.data.labels] for each in listed]
    np.testing.assert_allclose(found_nc, p_nc, atol=2e-4)


@pytest.mark.thorough
def test_what_is_not_read_of_long_texts_is_said_or_refused(windowed, capfd):
    command = [f"--workdir={windowed}", "--mode=predict", "--prompt=" + "dull " * 6 + "and superb"]
    answers = {}
    for too_long in ("cut", "head_tail", "skip"):
        keys = [f"--config.data.too_long={too_long}", "--config.data.stride=0"]
        assert launch.main([*command, *keys]) == 0
        answers[too_long], err = capfd.readouterr()
        assert re.search("1 texts are longer than 8 tokens: (they are truncated|only their first)", err)
    assert answers["cut"] == answers["skip"] != answers["head_tail"]
    assert launch.main([*command, "--config.data.too_long=refuse"]) == 2
    assert "text 1 has 10 tokens, special ones among them; data.seq" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["classification", "bert"])
def test_some_batches_are_a_random_part_and_always_the_same(name, monkeypatch, texts):
    """Where rows are sorted; of all batches the order is of no account."""
    values = read_config(f"configs/{name}.py:tiny")
    if name == "bert":
        values["data"] |= {"source": f"jsonl:{texts}", "document": "file"}
    orders = []
    for limit in ("1", "0"):
        config = opening.check_config(values, [("train.evaluate_batches", limit)])
        experiment = find_experiment(config.experiment)(config)

        def loader(split, size, orders=orders, **order):
            orders.append(order)
            return SimpleNamespace(rows=SimpleNamespace(why=""))

        monkeypatch.setattr(experiment.data, "loader", loader)
        experiment.evaluators(lambda batch: batch)
    assert [each["shuffle"] for each in orders] == [True, False]


def as_read(tokenizer, token):
    """Of bytes those that are letters by themselves, and all others by the tokenizer's name for them."""
    text = tokenizer.decode([token])
    return text if re.fullmatch("[!-~]+", text.strip()) and text == text.strip() else tokenizer.name(token)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["words", "bytes"])
def test_what_is_guessed_for_a_mask_is_what_the_model_finds_likeliest(texts, kind):
    values = read_config("configs/bert.py:tiny")
    values["data"] |= {"source": f"jsonl:{texts}", "document": "file", "tokenizer": kind}
    config = opening.check_config(values)
    experiment = find_experiment(config.experiment)(config)
    params = jax.jit(lambda: parallel.unboxed(experiment.init(jax.random.key(1))))()
    params = jax.tree.map(lambda leaf: 3 * leaf, params)  # so that tokens differ by more than rounding
    text = "the film [MASK] a [MASK] of two people"
    (answers,) = experiment.predict(params, [text])
    assert len(answers) == 2
    several = text.replace("[MASK]", "[MASK*2]", 1), text.replace("[MASK]", "[MASK] [MASK]", 1)
    if kind == "words":  # where a space is not a token
        assert [*experiment.predict(params, several[:1])] == [*experiment.predict(params, several[1:])]
    special_tokens, tokenizer = experiment.data.special_tokens, experiment.data.tokenizer
    before, between, after = ([*tokenizer.encode(part)] for part in text.split("[MASK]"))
    tokens = [
        special_tokens.cls,
        *before,
        special_tokens.mask,
        *between,
        special_tokens.mask,
        *after,
        special_tokens.sep,
    ]
    places = [1 + len(before), 2 + len(before) + len(between)]
    one = jnp.ones((1, len(tokens)), jnp.int32)  # no padding here
    inputs = jnp.array([tokens]), jnp.array([places])
    found, _ = jax.jit(lambda p, a, b, c: experiment.model.apply({"params": p}, a, b, segments_bt=c))(
        params, *inputs, one
    )
    for answer, logits_v in zip(answers, np.asarray(found[0], float), strict=True):
        real = [i for i in range(tokenizer.vocab_size) if i != tokenizer.eos_id and tokenizer.name(i)]
        real = [i for i in real if i not in (special_tokens.cls, special_tokens.sep, special_tokens.mask)]
        p = np.exp(logits_v[real] - logits_v[real].max())
        order = np.argsort(-p)[:5]
        expected = [(as_read(tokenizer, real[i]), p[i] / p.sum()) for i in order]
        guesses = [each.rpartition(" ") for each in answer.split("\t")]
        shares = [float(share) for _, _, share in guesses]
        assert shares == pytest.approx([share for _, share in expected], abs=6e-5)
        near = np.diff(np.sort(-p)[:6] / p.sum()).min() < 1e-4  # whose order rounding may change
        assert near or [guess for guess, _, _ in guesses] == [guess for guess, _ in expected]
