import argparse
import math

import jax
import numpy as np
import pytest

import launch
from commands.support.inspected import subject_of
from tests import runs
from transformer.errors import UserError
from transformer.interpret.activations import unrolled
from transformer.interpret.instruments import INSTRUMENTS
from transformer.interpret.interventions import Interventions, logits, zero
from transformer.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from workdir.opening import load

pytestmark = [pytest.mark.usefixtures("in_root", "drawn"), pytest.mark.thorough]


@pytest.fixture(scope="module")
def letters(tmp_path_factory):
    """A language model of bytes."""
    source = runs.write_corpus(tmp_path_factory.mktemp("corpus"))
    folder = tmp_path_factory.mktemp("letters") / "run"
    assert launch.main(runs.tiny(source, folder, "--config.model.scan_layers=true")) == 0
    return folder


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    """A model of an algorithmic task, whose tokens are integers."""
    folder = tmp_path_factory.mktemp("numbers") / "run"
    config = "--config=configs/studies/induction_heads/induction_heads.py:tiny"
    more = ["--config.train.steps=40", "--config.optimizer.learning_rate=0.03"]
    assert launch.main([config, f"--workdir={folder}", *more]) == 0
    return folder


def inspect(capfd, folder, *flags: str) -> list[str]:
    capfd.readouterr()
    assert launch.main([f"--workdir={folder}", "--mode=inspect", *flags]) == 0, capfd.readouterr().err
    return capfd.readouterr().out.splitlines()


def cells(line: str) -> list[float]:
    return [float(cell) for cell in line.split()[1:]]


def test_the_last_column_of_a_lens_is_what_the_model_predicts(capfd, letters, tmp_path):
    picture = tmp_path / "lens.png"
    title, columns, *rows, last = inspect(capfd, letters, "--prompt=alpha", f"--picture={picture}")
    run, params = load(letters)
    tokens = [run.experiment.data.tokenizer.bos_id, *b"alpha"]
    logits_tv = logits(run.experiment.model, params, np.array([tokens]))[0]
    tops = [run.experiment.data.tokenizer.decode([int(i)]) for i in logits_tv.argmax(-1)]
    assert title == "the most probable next token:" and columns.split()[0] == "embedding"
    assert [row.split()[0] for row in rows] == ["start", *"alpha"]
    assert all(row.endswith(top.strip() or "'") for row, top in zip(rows, tops, strict=True))
    assert last == f"{picture} shows them" and picture.is_file()


def test_amounts_are_those_of_the_logits(capfd, letters):
    title, columns, *rows, _ = inspect(capfd, letters, "--prompt=alpha", "--instrument=attribution")
    run, params = load(letters)
    tokens = [run.experiment.data.tokenizer.bos_id, *b"alpha"]
    ranked_v = np.sort(np.asarray(logits(run.experiment.model, params, np.array([tokens]))[0, -1]))
    total = float(title.split("adds up to ")[1].split(",")[0])
    assert total == pytest.approx(ranked_v[-1] - ranked_v[-2], abs=6e-4)
    assert sum(cells(row)[0] for row in rows) == pytest.approx(total, abs=0.02)
    for row in rows:
        whole, *parts = cells(row)
        assert whole == pytest.approx(sum(parts), abs=0.004) or ("attention" not in row and not any(parts))
    assert columns.split()[:2] == ["whole", "head_0"]
    assert (letters / "inspect_attribution.png").is_file()


def test_what_is_patched_matters_where_texts_differ(capfd, numbers):
    run, params = load(numbers)
    ends = np.array([[1, 2, i, j] for i in range(8) for j in range(8)])
    tops = np.asarray(logits(run.experiment.model, params, ends)[:, -1].argmax(-1))
    clean, against = ends[0], ends[np.flatnonzero(tops != tops[0])[0]]
    texts = [f"--{name}={' '.join(map(str, x))}" for name, x in (("prompt", clean), ("against", against))]
    lines = inspect(capfd, numbers, *texts, "--instrument=patching", "--site=input")
    assert [line.split()[0] for line in lines[2:-1]] == [*map(str, clean)]
    assert f"'{tops[0]}' against" in lines[0]
    for line in lines[2:4]:
        assert cells(line) == pytest.approx([0, 0], abs=1e-3)
    assert sum(abs(x) for line in lines[4:6] for x in cells(line)) > 0.1


def test_heads_are_scored_on_a_text_or_on_random_tokens(capfd, numbers, letters):
    lines = inspect(capfd, numbers, "--instrument=heads")
    assert [line.split()[0] for line in lines[2:-1]] == [
        f"layer_{i}/{kind}" for kind in ("induction", "previous") for i in range(2)
    ]
    assert all(0 <= x <= 1 for line in lines[2:-1] for x in cells(line))
    assert inspect(capfd, letters, "--instrument=heads", "--prompt=abab")[0] == "the attention of heads:"


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ([], "--prompt: --instrument=lens needs it; such as --prompt="),
        (
            ["--prompt=1 2", "--instrument=patching"],
            "--against: --instrument=patching needs it; a second text",
        ),
        (
            ["--prompt=1 2", "--against=2"],
            "--against: --instrument=lens does not read it; expected one of attribution, patching",
        ),
        (["--prompt=1 2", "--site=input"], "--site: --instrument=lens does not read it; expected one of pat"),
        (
            ["--prompt=1 2", "--against=3 4", "--instrument=patching", "--site=output"],
            "--site: 'output'; expected one of input, attention, feed_forward",
        ),
        (["--prompt=1 x"], "--prompt: '1 x' is not a list of integers"),
        (["--prompt=1 2", "--picture=x.txt"], "--picture: x.txt; expected a name that ends in .png"),
        (["--prompt=1 2 3", "--against=1 2 3", "--instrument=attribution"], "--against: the model continues"),
        (["--prompt=1 2 3", "--instrument=heads"], "induction: no token of the text occurs before"),
        (["--instrument=neurons", "--batches=0"], "--batches: 0; expected at least 1"),
        (["--instrument=neurons", "--site=block"], "'block' is the path of no value of the model"),
        (
            ["--prompt=1 2", "--against=1 2 3", "--instrument=patching"],
            "the texts have 2 and 3 tokens; expected the same number",
        ),
    ],
)
def test_a_wrong_flag_is_one_line(capfd, numbers, flags, why):
    capfd.readouterr()
    assert launch.main([f"--workdir={numbers}", "--mode=inspect", *flags]) == 2
    out, error = capfd.readouterr()
    assert out == "" and error.startswith(f"error: {why}") and error.count("\n") == 1


def test_an_encoder_and_a_long_text_are_refused(capfd, letters, tmp_path):
    length = load(letters)[0].config.model.max_length
    assert launch.main([f"--workdir={letters}", "--mode=inspect", f"--prompt={'a' * length}"]) == 2
    assert f"--prompt: {length + 1:,} tokens; the model reads {length:,}" in capfd.readouterr().err
    source = runs.write_corpus(tmp_path / "corpus")
    made = ["--config=configs/bert.py:tiny", f"--config.data.source={source}", f"--workdir={tmp_path}/bert"]
    assert launch.main(made) == 0
    assert launch.main([f"--workdir={tmp_path}/bert", "--mode=inspect", "--prompt=alpha"]) == 2
    assert "masked_lm; expected a run whose decoder continues a text" in capfd.readouterr().err


@pytest.fixture(scope="module")
def encoders(tmp_path_factory):
    """A masked language model, a classifier and a model of images, after one step."""
    source, folder = runs.write_corpus(tmp_path_factory.mktemp("corpus")), tmp_path_factory.mktemp("encoders")
    made = {"bert": [f"--config.data.source={source}"], "classification": [], "vision": []}
    made["vision"] = ["--config.model.pooling=cls", "--config.model.max_length=17"]
    for name, more in made.items():
        flags = [f"--config=configs/{name}.py:tiny", f"--workdir={folder / name}", "--config.train.steps=1"]
        assert launch.main([*flags, *more]) == 0
    return folder


QUICK = {"steps": "--steps=2", "batches": "--batches=1"}


@pytest.mark.parametrize("kind", INSTRUMENTS)
def test_a_decoder_is_looked_into_by_all(capfd, numbers, letters, kind):
    """Each prints a table and draws it, where the run is of integers or of texts."""
    instrument = INSTRUMENTS[kind]
    readable = instrument.needs + instrument.may
    for folder, texts in ((numbers, ("1 2 3", "5 6 7")), (letters, ("alpha", "omega"))):
        flags = [QUICK[name] for name in readable if name in QUICK]
        flags += [
            f"--{name}={text}"
            for name, text in zip(("prompt", "against"), texts, strict=True)
            if name in instrument.needs
        ]
        if "site" in readable and not instrument.sites:
            flags.append("--site=blocks/0")
        if instrument.needs == ("prompt", "against"):
            run, params = load(folder)
            flags[-2:] = two_texts(run.experiment, params, folder == letters)
        title, columns, *rows, last = inspect(capfd, folder, f"--instrument={kind}", *flags)
        assert title.endswith(":") and columns and rows
        assert last == f"{folder / f'inspect_{kind}.png'} shows them"


def two_texts(experiment, params, letters: bool) -> list[str]:
    """Flags with two texts of three tokens that the model continues differently."""
    words = (
        [f"{a}{b}{c}" for a in "abc" for b in "xyz" for c in "0(q"]
        if letters
        else [f"{i} {j} {k}" for i in range(8) for j in range(3) for k in range(8)]
    )
    bos = [experiment.data.tokenizer.bos_id] if letters else []
    rows = np.array([[*bos, *(word.encode() if letters else map(int, word.split()))] for word in words])
    tops = np.asarray(logits(experiment.model, params, rows)[:, -1].argmax(-1))
    return [f"--prompt={words[0]}", f"--against={words[int(np.flatnonzero(tops != tops[0])[0])]}"]


@pytest.mark.parametrize("kind", INSTRUMENTS)
@pytest.mark.parametrize("name", ["bert", "classification", "vision"])
def test_an_encoder_is_looked_into_by_those_that_read_no_next_token(capfd, encoders, name, kind):
    instrument, folder = INSTRUMENTS[kind], encoders / name
    image = next((folder / "samples").glob("*.png")) if name == "vision" else "a b"
    prompts = [f"--{flag}={image}" for flag in instrument.needs]
    command = [f"--workdir={folder}", "--mode=inspect", f"--instrument={kind}", *prompts]
    command += [QUICK[flag] for flag in instrument.may if flag in QUICK]
    capfd.readouterr()
    assert launch.main(command) == (2 if instrument.decoder else 0), capfd.readouterr().err
    out, error = capfd.readouterr()
    if instrument.decoder:
        assert out == "" and "expected a run whose decoder continues a text" in error
    else:
        assert out.splitlines()[-1] == f"{folder / f'inspect_{kind}.png'} shows them"


def test_texts_of_encoders_are_framed_and_patches_are_levels(encoders):
    flags = argparse.Namespace(instrument="attention_rollout", prompt="a[MASK]\tb", against=None, batches=1)
    run, params = load(encoders / "bert")
    reading = subject_of(run, params, flags).prompt
    assert reading.names == ["[CLS]", "a", "[MASK]", "[SEP]", "b", "[SEP]"]
    data, model = run.experiment.data, run.experiment.model
    encode = data.tokenizer.encode
    parts = [np.array([*encode("a"), data.special_tokens.mask]), np.array(encode("b"))]
    tokens_t, types_t = data.special_tokens.build_input(parts)
    x_btd = model.apply({"params": params}, tokens_t[None], types_bt=types_t[None], method="encode")
    np.testing.assert_allclose(reading.forward(params), x_btd, atol=1e-5)
    with pytest.raises(
        UserError, match=r"^--instrument: the data of masked_lm; expected a run of a decoder or"
    ):
        subject_of(run, params, flags).tokens({})
    run.experiment.model = EncoderDecoder(EncoderDecoderConfig(), 19)
    with pytest.raises(
        UserError, match=r"^--instrument=attention_rollout: masked_lm; expected a run of a dec"
    ):
        subject_of(run, params, flags)
    run, params = load(encoders / "vision")
    flags.prompt = None
    subject = subject_of(run, params, flags)
    (batch,) = subject.batches("validation")
    tokens_bt, _ = subject.tokens(batch)
    images = np.asarray(batch["images"], np.float64)
    assert tokens_bt.shape == (len(images), 17) and (tokens_bt[:, 0] == 16).all()
    assert (tokens_bt[:, 2] == images[:, 0:2, 2:4].mean(axis=(1, 2, 3)) // 16).all()


def test_scores_and_completions_of_a_run_are_edited(letters):
    """`experiment.score` and `experiment.predict`, by the logits of the whole model."""
    run, params = load(letters)
    model = run.experiment.model = unrolled(run.experiment.model)
    edit, bos = zero("blocks/0/attention/output/input", heads=0), run.experiment.data.tokenizer.bos_id
    pair = ("alpha", " beta")

    def score() -> float:
        return next(iter(run.experiment.score(params, [pair]))).log_likelihood

    before = score()
    with Interventions(edit):
        edited = score()
    tokens = [bos, *b"alpha beta"]
    logits_tv = logits(model, params, np.array([tokens]), edit)[0]
    chosen = [jax.nn.log_softmax(logits_tv[t - 1])[tokens[t]] for t in range(6, len(tokens))]
    assert edited == pytest.approx(float(sum(chosen)), abs=1e-4) and not math.isclose(edited, before)
    assert score() == before
