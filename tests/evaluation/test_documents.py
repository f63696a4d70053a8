"""Which document each target belongs to, its loss, and what a step has read."""

import json

import jax
import numpy as np
import pytest

import launch
from benchmarks import planted_document
from tests import runs
from transformer.data.pairs.pair_packing import RepackedPairs
from transformer.evaluation.documents import document_losses
from workdir import opening

pytestmark = pytest.mark.usefixtures("in_root")


def write_pairs(path, rng, count=50):
    letters = np.array(list("abcdef "))
    lines = [
        "\t".join(f"{number}x" + "".join(rng.choice(letters, rng.integers(2, 9))) for _ in range(2))
        for number in range(count)
    ]
    path.write_text("".join(f"{line}\n" for line in lines))
    return [line.split("\t") for line in lines]


def write_labelled(path, rng, count=50):
    lines = [f"{number} {'ab ' * int(rng.integers(1, 9))}".strip() for number in range(count)]
    rows = ["label\ttext", *(f"{number % 3}\t{line}" for number, line in enumerate(lines))]
    path.write_text("".join(f"{row}\n" for row in rows))
    return lines


def opened(name: str, **keys):
    """A run that is not trained, and its initial parameters."""
    values = opening.read_config(f"configs/{name}.py:tiny")
    run = opening.open_without_data(values, [(key.replace("__", "."), str(v)) for key, v in keys.items()])
    with run.placed():
        return run, run.first_state().params


def text_run(tmp_path, **keys):
    source = runs.write_corpus(tmp_path / "corpus", documents=12)
    given = {"data__source": source, "data__validation_source": source, "data__tokenizer": "bytes"}
    return opened("lm", **given, data__sequence_length=48, **keys)


def pair_run(tmp_path, rng, **keys):
    write_pairs(tmp_path / "pairs.tsv", rng)
    given = {
        "data__source": f"tsv:{tmp_path}/pairs.tsv",
        "data__validation_source": f"tsv:{tmp_path}/pairs.tsv",
    }
    return opened("translation", **given, data__tokenizer="bytes", **keys)


def of_tokens(records, segments):
    """The record of each token, by those of the segments of each row; -1 for padding."""
    return np.array([[([-1, *own])[k] for k in row] for own, row in zip(records, segments, strict=True)])


def one_by_one(run, params, split="validation"):
    """The loss and the weight of each document, from the losses of batches with the weights of one alone."""
    experiment, sums = run.experiment, {}
    loss = jax.jit(lambda batch: experiment.loss(params, batch, jax.random.key(0), False)["loss"])
    loader = experiment.loader(split)
    for step, batch in enumerate(loader.iterate(0)):
        documents = of_tokens(loader.documents_at(step), batch["segments"])
        for number in np.unique(documents[batch["weights"] > 0]).tolist():
            alone = loss({**batch, "weights": batch["weights"] * (documents == number)})
            sums[number] = sums.get(number, 0) + np.array([alone.total, alone.weight])
    return {number: (total / weight, weight) for number, (total, weight) in sums.items()}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["text", "pairs"])
@pytest.mark.parametrize("microbatches", [1, 2])
def test_the_loss_of_a_document_is_the_mean_of_its_positions(tmp_path, rng, kind, microbatches):
    keys = {"train__batch_size": 16, "parallel__microbatches": microbatches}
    run, params = text_run(tmp_path, **keys) if kind == "text" else pair_run(tmp_path, rng, **keys)
    run_of_one = run.experiment.loader("validation")
    with run.placed():
        found = document_losses(run.experiment, params, run.put, run_of_one)
        expected = one_by_one(run, params)
    assert [each.loss for each in found] == sorted((each.loss for each in found), reverse=True)
    assert {each.number for each in found} == expected.keys()
    for each in found:
        np.testing.assert_allclose((each.loss, each.targets), expected[each.number], rtol=2e-5)
    source = run.experiment.data.sources("validation")[-1]
    assert [each.num_bytes for each in found] == [len(source.text(each.number).encode()) for each in found]


def test_positions_of_packed_text_belong_to_the_document_that_has_their_text(tmp_path):
    run, _ = text_run(tmp_path)
    rows, source = run.experiment.data.rows("train"), run.experiment.data.source("train")
    numbers = np.array([0, -1, *range(1, len(rows))])
    batch = rows.batch(numbers)
    documents = of_tokens(rows.documents(numbers), batch["segments"])
    assert (documents[1] == -1).all() and ((documents >= 0) == (batch["segments"] > 0)).all()
    written = {}
    for row in [0, *range(2, len(numbers))]:
        for document in np.unique(documents[row][documents[row] >= 0]):
            here = (documents[row] == document) & (batch["weights"][row] > 0)
            written[document] = written.get(document, b"") + bytes(
                token for token in batch["targets"][row][here].tolist() if token < 256
            )
    assert written == {number: source.text(number).encode() for number in range(len(source))}


@pytest.mark.thorough
def test_pairs_are_found_in_every_epoch_and_in_rows_of_two(tmp_path, rng):
    run, _ = pair_run(tmp_path, rng)
    pairs = [line.split("\t") for line in (tmp_path / "pairs.tsv").read_text().splitlines()]
    loader = run.experiment.train_data()
    assert isinstance(loader.rows, RepackedPairs)
    decode = run.experiment.data.tokenizer.decode
    for step in (0, len(loader) - 1, 3 * len(loader) + 1):
        batch = loader.batch_at(step)
        documents = of_tokens(loader.documents_at(step), batch["segments"])
        assert ((documents >= 0) == (batch["segments"] > 0)).all()
        for row, there in enumerate(documents):
            for number in np.unique(there[there >= 0]):
                segment = batch["segments"][row][there == number]
                assert len({*segment.tolist()}) == 1
                source = batch["source"][row][batch["source_segments"][row] == segment[0]]
                assert decode(source.tolist()).strip() == pairs[number][0].strip()


@pytest.mark.parametrize("too_long", ["cut", "windows"])
def test_texts_with_labels_are_found_by_their_number(tmp_path, rng, too_long):
    lines = write_labelled(tmp_path / "texts.tsv", rng)
    source = f"tsv:{tmp_path}/texts.tsv"
    run, _ = opened(
        "classification",
        data__source=source,
        data__validation_source=source,
        data__tokenizer="bytes",
        data__sequence_length=24,
        data__too_long=too_long,
    )
    loader = run.experiment.loader("validation")
    seen = set()
    for step in range(len(loader)):
        batch, documents = loader.batch_at(step), loader.documents_at(step)
        assert [*map(len, documents)] == (batch["weights"] > 0).sum(axis=1).tolist()
        for row, k in zip(*np.nonzero(batch["weights"]), strict=True):
            tokens = batch["tokens"][row][batch["segments"][row] == k + 1]
            text = bytes(token for token in tokens.tolist() if token < 256).decode()
            assert text in lines[documents[row][k]]
            seen.add(int(documents[row][k]))
    assert seen == set(range(len(lines)))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("documents")
    source = runs.write_corpus(folder / "corpus", documents=8)
    keys = ["data.tokenizer=bytes", "data.sequence_length=32"]
    keys += [f"data.validation_source={source}", "data.overlap=1"]
    assert launch.main(runs.tiny(source, folder / "run", *(f"--config.{key}" for key in keys))) == 0
    return folder


def lines_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.thorough
def test_the_command_writes_all_documents_and_their_losses_give_the_loss(trained, capsys):
    out = trained / "documents.jsonl"
    run = f"--workdir={trained}/run"
    assert launch.main([run, "--mode=evaluate", f"--per_document={out}"]) == 0
    printed = capsys.readouterr().out
    lines = lines_of(out)
    assert {line["place"] for line in lines} == {f"{trained}/corpus/{number}.txt:1" for number in range(8)}
    for line in lines:
        text = (trained / "corpus" / f"{line['place'].split('/')[-1][0]}.txt").read_text()
        assert text.startswith(line["text"]) and len(line["text"]) == min(200, len(text))
        assert line["targets"] == len(text.encode()) + 1  # and the end
        expected = line["loss"] * line["targets"] / np.log(2) / len(text.encode())
        assert line["bits_per_byte"] == pytest.approx(expected)
    mean = np.average([line["loss"] for line in lines], weights=[line["targets"] for line in lines])
    assert runs.measured(printed)["eval/loss"] == pytest.approx(mean, rel=1e-5)
    assert f"the loss of 8 documents; the highest is {lines[0]['loss']:.6g} of {lines[0]['place']}" in printed


def test_a_file_that_cannot_be_written_is_named_by_its_flag(trained, capsys):
    out = trained / "other.jsonl"
    (trained / "other.jsonl.part").write_text("mine")
    assert launch.main([f"--workdir={trained}/run", "--mode=evaluate", f"--per_document={out}"]) == 2
    assert capsys.readouterr().err.startswith(f"error: --per_document: {out}.part is there, of another")
    assert (trained / "other.jsonl.part").read_text() == "mine" and not out.exists()


def test_the_documents_of_a_step_are_those_it_was_trained_on(trained, capsys):
    run = f"--workdir={trained}/run"
    assert launch.main([run, "--mode=batch", "--step=2"]) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    batch = opening.reopen_run(trained / "run").experiment.train_data().batch_at(1)
    assert {line["row"] for line in printed} == set(range(len(batch["tokens"])))
    for line in printed:
        text = (trained / "corpus" / line["place"].split("/")[-1].removesuffix(":1")).read_text()
        assert line["tokens"].strip("�") in text
    assert sum(len(line["tokens"].encode()) for line in printed) >= 0.9 * (batch["tokens"] > 0).sum() - 32


@pytest.mark.thorough
def test_a_fork_has_read_what_follows(trained, capsys):
    """With another batch size, its batches have other numbers than those of the run."""
    fork = [f"--to={trained}/fork", "--config.train.batch_size=16", "--config.train.steps=5"]
    assert launch.main([f"--workdir={trained}/run", "--mode=fork", *fork]) == 0
    capsys.readouterr()
    size = opening.reopen_run(trained / "run").config.train.batch_size
    order = opening.reopen_run(trained / "run").experiment.train_data()
    assert 2 * size % 16 == 0
    rows = np.concatenate([order.batch_at(step)["tokens"] for step in range(20)])[2 * size :]
    for step in (3, 5):
        assert launch.main([f"--workdir={trained}/fork", "--mode=batch", f"--step={step}"]) == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        for line in lines:
            file = trained / "corpus" / line["place"].split("/")[-1].removesuffix(":1")
            assert line["tokens"].strip("�") in file.read_text()
        expected = rows[16 * (step - 3) : 16 * (step - 2)]
        decode = opening.reopen_run(trained / "run").experiment.data.tokenizer.decode
        for row, tokens in enumerate(expected):
            printed = "".join(line["tokens"] for line in lines if line["row"] == row)
            assert printed.strip("�")[:8] in decode(tokens.tolist())
    assert launch.main([f"--workdir={trained}/fork", "--mode=batch", "--step=2"]) == 2
    assert "is a fork that starts after step 2" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["--step=0"], ["--step=-3"]])
def test_a_step_must_be_named(trained, arguments, capsys):
    assert launch.main([f"--workdir={trained}/run", "--mode=batch", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: --step: ") and "expected 1 or more" in error


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["transformer_xl", "bert", "word_embedding"])
def test_losses_that_are_not_of_one_document_are_refused(tmp_path, capsys, name):
    source = runs.write_corpus(tmp_path / "corpus")
    arguments = [
        f"--config=configs/{name}.py:tiny",
        f"--config.data.source={source}",
        "--config.train.steps=2",
    ]
    assert launch.main([*arguments, f"--workdir={tmp_path}/run"]) == 0
    out = tmp_path / "documents.jsonl"
    assert launch.main([f"--workdir={tmp_path}/run", "--mode=evaluate", f"--per_document={out}"]) == 2
    assert "no loss of a single document" in capsys.readouterr().err and not out.exists()
    assert launch.main([f"--workdir={tmp_path}/run", "--mode=batch", "--step=1"]) == 0


@pytest.mark.thorough
def test_a_planted_document_is_found_by_the_spike_of_its_loss(tmp_path):
    found = [planted_document.found(tmp_path / str(trial), 1000 + trial) for trial in range(4)]
    assert sum(found) >= 3  # of 100, 95 are promised: benchmarks/planted_document.py
