"""Input and output of predict: files are checked before a model is loaded, and answers are continued."""

import gzip
import os
from pathlib import Path

import pytest

import launch
from commands.support.answer_files import writing
from commands.support.columns import as_source, named_source
from commands.support.texts import lines, open_input
from experiments.language_modeling import LanguageModeling
from tests import runs
from transformer.data.cache import token_cache
from transformer.errors import UserError
from transformer.training.run import Run
from workdir import opening

pytestmark = pytest.mark.usefixtures("in_root")

WORDS = ["good", "bad", "film", "actors", "plot", "long"]


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    """A table of texts with labels, under a header."""
    path = tmp_path_factory.mktemp("table") / "films.tsv"
    lines = [f"{WORDS[i % 6]} {WORDS[i % 5]} {i}\t{'yes' if i % 2 else 'no'}" for i in range(80)]
    path.write_text("review\tliked\n" + "\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def classifier(table, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "classifier"
    keys = [f"data.source=tsv:{table}", "data.text_field=review", "data.label_field=liked"]
    arguments = ["--config=configs/classification.py:tiny", f"--workdir={folder}"]
    assert launch.main([*arguments, *(f"--config.{key}" for key in keys)]) == 0
    return folder


@pytest.fixture(scope="module")
def language_model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "lm"
    source = runs.write_corpus(tmp_path_factory.mktemp("corpus"))
    assert launch.main(runs.tiny(source, folder)) == 0
    return folder


def predict(folder: Path, *arguments: str) -> int:
    return launch.main([f"--workdir={folder}", "--mode=predict", *arguments])


def no_model(*arguments, **options):
    raise AssertionError("a model is loaded")


def test_a_file_is_looked_at_before_a_model_is_loaded(monkeypatch, capfd, tmp_path, classifier, table):
    monkeypatch.setattr(Run, "restore_params", no_model)
    labelled = table.read_text().partition("\n")[2]
    path, capture = tmp_path / "in", capfd.readouterr
    for content, expected in {
        table.read_text(): f"{path}:1 is a header (review, liked); --input=tsv:{path} reads its columns",
        labelled: f"{path}: the last column of every line is a label; give the texts alone, or a table",
        "\n".join(
            "\t".join(reversed(line.split("\t"))) for line in labelled.splitlines()
        ): "the first column of",
        "": f"{path} is empty",
        "fine\n" * 2000 + "caf\udce9\n" + "fine\n": f"{path}:2001 is not UTF-8",
    }.items():
        path.write_text(content, errors="surrogateescape")
        capture()
        assert predict(classifier, f"--input={path}", f"--output={tmp_path / 'out'}") == 2
        out, error = capture()
        assert expected in error and error.count("\n") == 1 and out == "", error
    assert predict(classifier, f"--input={tmp_path}") == 2
    assert "is a folder; expected a file" in capture().err
    assert [each.name for each in tmp_path.iterdir()] == ["in"]


def test_what_may_be_meant_is_said(capfd, tmp_path, classifier):
    path = tmp_path / "in"
    path.write_text("review\ngood film\tlong\nbad plot\n")
    assert predict(classifier, f"--input={path}") == 0
    out, error = capfd.readouterr()
    assert out.count("\n") == 3 and f"{path}:1 is 'review'; if that is a header, remove it" in error
    assert f"{path}: 1 of 3 lines have tabs, read as part of the text" in error


@pytest.mark.parametrize("name", ["texts", "texts.gz", None])
def test_only_a_line_feed_ends_a_line(tmp_path, name):
    """In files, packed or not, and in standard input; carriage returns before it and a byte-order mark at the
    beginning are not text."""
    data = "\ufeffone\rtwo\r\n\nthr\u2028ee\x0b\x85\n\ufefffour".encode()
    path = tmp_path / (name or "stdin")
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    wanted = ["one\rtwo", "", "thr\u2028ee\x0b\x85", "\ufefffour"]
    if name:
        assert list(lines(str(path))) == wanted
        return
    before = os.dup(0)
    try:
        with path.open("rb") as file:
            os.dup2(file.fileno(), 0)
        assert list(lines(None)) == wanted
    finally:
        os.dup2(before, 0)
        os.close(before)


def test_a_packed_file_is_answered_line_by_line(capfd, tmp_path, classifier):
    path, plain = tmp_path / "texts.gz", tmp_path / "texts"
    path.write_bytes(gzip.compress("\ufeffgood\rfilm\r\nbad plot\r\n".encode()))
    plain.write_bytes(b"good\rfilm\nbad plot\n")
    answers = []
    for each in (plain, path):
        capfd.readouterr()
        assert predict(classifier, f"--input={each}") == 0
        answers.append(capfd.readouterr().out)
    assert answers[0] == answers[1] and answers[0].count("\n") == 2
    path.write_bytes(gzip.compress(b"review\tliked\r\ngood\tyes\r\n"))
    assert predict(classifier, f"--input={path}") == 2
    assert f"{path}:1 is a header (review, liked); --input=tsv:{path} reads" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"plain", "not a whole gzip file (Not a gzipped file"),
        (gzip.compress(b"a line\n" * 99)[:-12], "not a whole gzip file (Compressed file ended"),
        (gzip.compress(b"a line\n")[:10] + b"\xff" * 99, "not a whole gzip file (Error"),
        (gzip.compress(b"fine\n\xff\n"), "{}:2 is not UTF-8"),
        (b"", "{} is empty"),
    ],
    ids=["plain", "cut", "overwritten", "latin", "empty"],
)
def test_a_broken_packed_file_is_refused_in_one_line(tmp_path, data, said):
    class Experiment:
        problem = staticmethod(lambda text: "")

        class data:
            kinds, lines = ("jsonl",), "jsonl"

    path = tmp_path / "texts.gz"
    path.write_bytes(data)
    with pytest.raises(UserError) as error:
        open_input(str(path), Experiment)
    message = str(error.value)
    assert message.startswith(f"--input: {path}") and said.format(path) in message and "\n" not in message


def test_a_file_is_read_by_the_same_rule_everywhere(capfd, tmp_path, classifier):
    """By its suffix as a table, with a record for each answer; any other as lines of texts."""
    table = tmp_path / "test.csv"
    table.write_text('review,liked\n"He said ""hi"", twice",yes\n"two\nlines",no\nplain,yes\n')
    assert predict(classifier, f"--input={table}") == 0
    assert capfd.readouterr().out.count("\n") == 3
    data = opening.reopen_run(classifier).experiment.data
    wanted = {table: f"csv:{table}", f"csv:{table}": f"csv:{table}", "no.csv": "", tmp_path: ""}
    there = {"a.tsv": "tsv", "b [1].jsonl.gz": "jsonl", "c.txt": "", "tsv:d": "", "e.gz": ""}
    for name, kind in there.items():
        (tmp_path / name).write_text("")
        wanted[tmp_path / name] = kind and f"{kind}:{tmp_path}/{name}"
    for name, source in wanted.items():
        assert named_source(str(name), data) == source
        if source:
            assert as_source(str(name), data) == source
    data.kinds = ("jsonl",)
    for read in (named_source, as_source):
        with pytest.raises(UserError, match=r"^--input: \S+test\.csv: unknown format; expected KIND:\S+"):
            read(str(table), data)


@pytest.mark.thorough
def test_a_table_is_read_by_the_names_of_the_run(capfd, tmp_path, classifier, table):
    texts = [line.split("\t")[0] for line in table.read_text().splitlines()[1:]]
    (tmp_path / "texts").write_text("\n".join(texts))
    assert predict(classifier, f"--input={tmp_path / 'texts'}") == 0
    wanted = capfd.readouterr().out
    assert wanted.count("\n") == 80
    (tmp_path / "other.tsv").write_text(
        "number\tliked\treview\n" + "\n".join(f"{i}\t\t{text}" for i, text in enumerate(texts))
    )
    assert predict(classifier, f"--input=tsv:{table}") == 0
    assert capfd.readouterr().out == wanted
    assert predict(classifier, f"--input=tsv:{tmp_path / 'other.tsv'}") == 0
    assert capfd.readouterr().out == wanted


@pytest.mark.thorough
def test_a_table_is_measured_in_any_form(capfd, tmp_path, classifier, table):
    """Whole, also where the run has another validation source."""
    rows = [line.split("\t") for line in table.read_text().splitlines()[1:]]
    (tmp_path / "rows.csv").write_text("liked,review\n" + "".join(f"{b},{a}\n" for a, b in rows))
    found = []
    for given in (table, f"tsv:{table}", tmp_path / "rows.csv"):
        for key in ([], [f"--config.data.validation_source=csv:{tmp_path / 'rows.csv'}"]):
            assert launch.main([f"--workdir={classifier}", "--mode=evaluate", f"--input={given}", *key]) == 0
            out = capfd.readouterr().out
            assert "eval: 80 of 80 examples" in out
            found.append(runs.measured(out))
    for each in found[1:]:
        assert each == pytest.approx(found[0], rel=1e-4)


@pytest.mark.thorough
def test_what_was_interrupted_goes_on_as_if_it_never_was(monkeypatch, capfd, tmp_path, language_model):
    texts, output = tmp_path / "texts", tmp_path / "out"
    texts.write_text("".join(f"text {i}\n" for i in range(40)))
    flags = [f"--input={texts}", "--temperature=1.5", "--max_new_tokens=6", "--num_samples=2"]
    assert predict(language_model, *flags, f"--output={tmp_path / 'straight'}") == 0
    original = LanguageModeling.predict

    def stopping(self, *arguments):
        for number, answers in enumerate(original(self, *arguments)):
            if number == 21:
                raise KeyboardInterrupt
            yield answers

    with monkeypatch.context() as patch:
        patch.setattr(LanguageModeling, "predict", stopping)
        assert predict(language_model, *flags, f"--output={output}") == 130
    assert "21 texts are answered in" in capfd.readouterr().err
    there = {path.name for path in tmp_path.iterdir()}
    assert there == {"texts", "straight", "out.part", "out.part.json"}
    before = runs.listing(tmp_path)
    assert predict(language_model, *flags, "--seed=1", f"--output={output}") == 2
    assert "out.part is there, of another input, model or flags; move it away" in capfd.readouterr().err
    assert runs.listing(tmp_path) == before
    with (tmp_path / "out.part").open("a") as part:
        part.write("what a killed program wrote of the next ans")
    asked = []

    def counting(self, params, given, *arguments):
        return original(self, params, (asked.append(text) or text for text in given), *arguments)

    monkeypatch.setattr(LanguageModeling, "predict", counting)
    monkeypatch.setitem(token_cache.BAR, "delay", 0)
    assert predict(language_model, *flags, f"--output={output}") == 0
    assert "answering" in capfd.readouterr().err
    assert asked == [f"text {i}" for i in range(21, 40)]
    assert output.read_text() == (tmp_path / "straight").read_text()
    assert {path.name for path in tmp_path.iterdir()} == {"texts", "straight", "out"}


def test_a_file_of_the_users_that_ends_in_part_is_left_alone(capfd, tmp_path, language_model):
    (tmp_path / "texts").write_text("a\n")
    (tmp_path / "out.part").write_text("mine\n")
    assert predict(language_model, f"--input={tmp_path / 'texts'}", f"--output={tmp_path / 'out'}") == 2
    assert "out.part is there" in capfd.readouterr().err
    assert (tmp_path / "out.part").read_text() == "mine\n" and not (tmp_path / "out").exists()


@pytest.mark.thorough
def test_a_draft_changes_nothing_of_what_is_written(capfd, tmp_path, language_model):
    """Greedily, of prompts of any length, past the window, with stops and several samples."""
    tokenizer, texts = language_model / "tokenizer.json", tmp_path / "texts"
    source = runs.write_corpus(tmp_path / "corpus")
    draft = ["--config.model.d_model=16", f"--config.data.tokenizer={tokenizer}"]
    assert launch.main(runs.tiny(source, tmp_path / "draft", *draft)) == 0
    texts.write_text("a\nalpha beta gamma\n" + 70 * "delta " + "\n")
    flags = [f"--input={texts}", "--temperature=0", "--max_new_tokens=40", "--num_samples=2", "--stop=qqq"]
    capfd.readouterr()
    found = []
    for more in ([], [f"--draft={tmp_path / 'draft'}"], [f"--draft={language_model}", "--draft_tokens=2"]):
        assert predict(language_model, *flags, *more) == 0
        found.append(capfd.readouterr().out)
    assert found[0] and found[1:] == found[:1] * 2
    drawn = [f"--draft={tmp_path / 'draft'}", "--temperature=0.8", "--top_p=0.9", "--max_new_tokens=9"]
    assert predict(language_model, "--prompt=a", *drawn) == 0


@pytest.mark.thorough
def test_a_draft_that_does_not_fit_is_refused(capfd, tmp_path, language_model, classifier):
    source = runs.write_corpus(tmp_path / "corpus")
    other = ["--config.data.tokenizer=characters"]
    short = ["--config.model.max_length=32", f"--config.data.tokenizer={language_model / 'tokenizer.json'}"]
    assert launch.main(runs.tiny(source, tmp_path / "other", *other)) == 0
    assert launch.main(runs.tiny(source, tmp_path / "short", *short)) == 0
    for run, flags, expected in (
        (
            language_model,
            [f"--draft={tmp_path / 'other'}"],
            "--draft: its tokenizer is a different one;",
        ),
        (
            language_model,
            [f"--draft={tmp_path / 'short'}"],
            "--draft: its model.max_length is 32; expected",
        ),
        (
            language_model,
            [f"--draft={classifier}"],
            "--draft: it is a run of classification; expected",
        ),
        (language_model, [f"--draft={tmp_path / 'nowhere'}"], "--draft: "),
        (language_model, [f"--draft={language_model}", "--draft_tokens=0"], "--draft_tokens: 0; expected at"),
        (
            classifier,
            [f"--draft={language_model}"],
            "--draft: this is a run of classification; expected",
        ),
    ):
        capfd.readouterr()
        assert predict(run, "--prompt=a", *flags) == 2
        assert f"error: {expected}" in capfd.readouterr().err


def test_two_commands_do_not_write_one_output(capfd, tmp_path, language_model):
    """The second one is refused while the first one writes, with the same flags or with others."""
    (tmp_path / "texts").write_text("a\n")
    flags = [f"--input={tmp_path / 'texts'}", f"--output={tmp_path / 'out'}"]
    with writing(str(tmp_path / "out"), source={"of": "another"}) as out:
        out.write(["the first one"])
        for given in (flags, ["--prompt=a", flags[1]]):
            assert predict(language_model, *given) == 2
            assert "out.part is being written by another command" in capfd.readouterr().err
    assert (tmp_path / "out").read_text() == "the first one\n"
    assert {path.name for path in tmp_path.iterdir()} == {"texts", "out"}
