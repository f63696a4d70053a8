"""How texts are written, as a user asks for it: flags of --mode=predict for each kind of run."""

import json
import sys
from pathlib import Path

import pytest

import launch
from configs import base
from tests import runs
from tests.data.documents import tokenizer

pytestmark = pytest.mark.usefixtures("in_root")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A language model of two steps, that reads 24 tokens at once and was trained on 16."""
    folder = tmp_path_factory.mktemp("model")
    source = runs.write_corpus(folder / "corpus")
    sizes = ["--config.model.max_length=24", "--config.data.sequence_length=16"]
    assert launch.main(runs.tiny(source, folder / "run", *sizes)) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def translator(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("translator")
    assert launch.main(["--config=configs/translation.py:tiny", f"--workdir={folder / 'run'}"]) == 0
    return folder / "run"


def predicted(capfd, run, *arguments) -> tuple[str, str]:
    capfd.readouterr()
    code = launch.main([f"--workdir={run}", "--mode=predict", *arguments])
    out, error = capfd.readouterr()
    assert code == 0, error
    return out, error


def refused(capfd, run, *arguments) -> str:
    capfd.readouterr()
    assert launch.main([f"--workdir={run}", "--mode=predict", *arguments]) == 2
    out, error = capfd.readouterr()
    assert out == "" and error.startswith("error: ") and error.count("\n") == 1
    return error.removeprefix("error: ")


PROMPT = ["--prompt=alpha", "--temperature=1.5", "--top_p=1", "--max_new_tokens=40"]


@pytest.mark.thorough
def test_what_the_model_cannot_see_or_was_not_trained_for_is_said_once(capfd, tmp_path, model):
    _, error = predicted(capfd, model, "--prompt=alpha", "--max_new_tokens=10")
    assert error == ""  # 6 tokens of the prompt and 9 new ones are read
    _, error = predicted(capfd, model, "--prompt=alpha", "--max_new_tokens=12")
    assert error == (
        "text 1: with 12 new tokens the context has 17; the model was trained on 16 "
        "(data.sequence_length), and longer texts may be nonsense\n"
    )
    texts = tmp_path / "texts"
    texts.write_text("\n".join(["a", "alpha", "alpha " * 9, "beta " * 9]))
    out, error = predicted(capfd, model, f"--input={texts}", "--max_new_tokens=20", "--num_samples=2")
    assert out.count("\n") == 8
    said = [line for line in error.splitlines() if "answering" not in line]  # a bar, on a slow machine
    length, window, prompt = filter(str.strip, said)
    assert length.startswith("text 1: with 20 new tokens the context has 21")
    assert window.startswith("text 2: its 6 tokens and 20 new ones are more than model.max_length 24;")
    assert prompt.startswith("text 3: 55 tokens are more than model.max_length 24; only the last 24 are")


@pytest.mark.thorough
def test_a_long_text_is_written_to_its_end(capfd, model):
    out, error = predicted(capfd, model, *PROMPT, "--max_new_tokens=200", "--seed=3")
    tokens = len(out.encode("utf-8", "surrogateescape"))
    assert "when the context is full, its older half is dropped" in error
    assert tokens > 30 or "\ufffd" in out


@pytest.mark.thorough
def test_a_model_with_memory_says_nothing_of_lengths(capfd, monkeypatch, tmp_path):
    run = [f"--workdir={tmp_path / 'run'}", f"--config.data.source={runs.write_corpus(tmp_path / 'corpus')}"]
    assert launch.main(["--config=configs/transformer_xl.py:tiny", *run]) == 0
    capfd.readouterr()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    out, error = predicted(capfd, tmp_path / "run", "--prompt=alpha", "--max_new_tokens=40")
    assert out.startswith("alpha") and error == ""
    monkeypatch.undo()
    assert predicted(capfd, tmp_path / "run", "--prompt=alpha", "--max_new_tokens=40")[0] == out


@pytest.mark.thorough
@pytest.mark.parametrize("more", [[], ["--max_new_tokens=60"], ["--temperature=0"], ["--stop=e", "--stop=z"]])
def test_at_a_terminal_a_text_appears_as_it_is_written(capfd, monkeypatch, model, more):
    whole, _ = predicted(capfd, model, *PROMPT, *more)
    pieces: list[str] = []
    with monkeypatch.context() as patch:
        write = sys.stdout.write
        patch.setattr(sys.stdout, "isatty", lambda: True)
        patch.setattr(sys.stdout, "write", lambda text: (pieces.append(text), write(text))[1])
        shown, _ = predicted(capfd, model, *PROMPT, *more)
        assert shown == whole
        single = [piece for piece in pieces if piece]
        assert len(single) > 2 and max(map(len, single[1:])) <= 8
        several, _ = predicted(capfd, model, *PROMPT, *more, "--num_samples=2")
        assert several.startswith(whole)


@pytest.mark.thorough
def test_a_text_ends_before_a_stop(capfd, tmp_path, model):
    whole, _ = predicted(capfd, model, *PROMPT)
    text = whole.removeprefix("alpha").removesuffix("\n")
    assert len(text) > 12
    stop = text[7:9]
    found, _ = predicted(capfd, model, *PROMPT, f"--stop={stop}", "--stop=not there")
    assert found == "alpha" + text.partition(stop)[0] + "\n"
    texts = tmp_path / "texts"
    texts.write_text("alpha\nbeta\n")
    options = [f"--input={texts}", *PROMPT[1:], "--num_samples=3"]
    every, _ = predicted(capfd, model, *options)
    some, _ = predicted(capfd, model, *options, r"--stop=a", r"--stop=\n")
    cut = [min(line.partition("a")[0], line.partition(r"\n")[0], key=len) for line in every.splitlines()]
    assert some.splitlines() == cut != every.splitlines()


@pytest.mark.thorough
def test_a_target_is_drawn_where_a_temperature_is_given(capfd, tmp_path, translator):
    texts = tmp_path / "texts"
    texts.write_text("two hundred\nseven\n")
    options = [f"--input={texts}", "--max_new_tokens=12"]
    searched, _ = predicted(capfd, translator, *options)
    assert searched.count("\n") == 2
    assert predicted(capfd, translator, *options, "--temperature=0", "--seed=4")[0] == searched
    drawn = [*options, "--temperature=1.5", "--num_samples=3", "--top_k=50", "--min_p=0.01"]
    first, _ = predicted(capfd, translator, *drawn)
    assert first.count("\n") == 6
    assert predicted(capfd, translator, *drawn)[0] == first
    assert predicted(capfd, translator, *drawn, "--seed=1")[0] != first
    scored, _ = predicted(capfd, translator, *options, "--beam_size=2", "--n_best=2", "--with_scores")
    best = [line.partition("\t") for line in scored.splitlines()]
    assert len(best) == 4 and all(float(score) < 0 and tab for score, tab, _ in best)
    for how in (["--beam_size=2", "--n_best=2"], drawn[1:]):
        whole, _ = predicted(capfd, translator, options[0], *how)
        stop = next(c for c in whole if c not in "\n\\")
        short, _ = predicted(capfd, translator, options[0], *how, f"--stop={stop}")
        assert short.splitlines() == [line.partition(stop)[0] for line in whole.splitlines()]


@pytest.mark.thorough
def test_flags_that_do_nothing_together_are_refused(capfd, translator):
    run = translator, "--prompt=seven"
    assert refused(capfd, *run, "--num_samples=2") == (
        "config.generate.num_samples: 2 with temperature 0, which is beam search, which takes n_best\n"
    )
    assert refused(capfd, *run, "--top_k=3").startswith("config.generate.top_k: 3 with temperature 0")
    assert refused(capfd, *run, "--temperature=1", "--n_best=2") == (
        "config.generate.n_best: 2 with temperature 1, which is sampling\n"
    )
    line = refused(capfd, *run, "--max_new_tokens=1000")
    assert line.startswith("config.generate.max_new_tokens: 1000 is longer than model.max_length")


@pytest.mark.parametrize(
    "name", ["classification", "masked_lm", "span_extraction", "vision", "word_embedding"]
)
def test_a_run_that_writes_no_text_refuses_the_flag_by_its_name(capfd, tmp_path, name):
    values = base.defaults(name).to_dict()
    (tmp_path / "config.json").write_text(json.dumps(values))
    for flag in ("temperature=1", "stop=x", "max_new_tokens=3"):
        line = refused(capfd, tmp_path, "--prompt=x", f"--{flag}")
        start = f"--{flag.partition('=')[0]}: this is a run of {name}, which writes no text"
        assert line.startswith(start)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["metaspace", "wordpiece"])
def test_no_space_is_lost_between_a_prompt_and_its_completion(capfd, monkeypatch, tmp_path, kind):
    """With tokenizers that drop a space at a text's beginning: words, of which a space parts any two."""
    tokenizer(kind, ["class pass return def"] * 3).save(tmp_path / "tokenizer.json")
    source = runs.write_corpus(tmp_path / "corpus")
    keys = [f"--config.data.tokenizer={tmp_path / 'tokenizer.json'}"]
    assert launch.main(runs.tiny(source, tmp_path / "run", *keys)) == 0

    from transformer.data.tokenization.tokenizers import Tokenizer
    from transformer.decoding.completion import TextGenerator

    made = Tokenizer.load(tmp_path / "tokenizer.json")
    words = made.encode("class pass return")
    following = words[len(made.encode("class")) :]

    def answer(generator, texts, *_):
        for text in texts:
            text.take(following, generator.window)
        yield

    monkeypatch.setattr(TextGenerator, "decode_batch", answer)
    out, _ = predicted(capfd, tmp_path / "run", "--prompt=class")
    assert out == "class pass return\n"
