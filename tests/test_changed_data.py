"""A run continues with the data it started with, wherever they lie, and refuses others."""

import json
import os
import shutil

import pytest

import launch
from tests import runs
from transformer.data.cache.content_digests import changes, contents_of
from transformer.data.tokenization.tokenizers import Tokenizer
from workdir import opening

pytestmark = pytest.mark.usefixtures("in_root")

SCHEDULE = ["--config.optimizer.schedule=constant"]


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A run of two steps, and the files that it reads."""
    folder = tmp_path_factory.mktemp("begun")
    runs.write_corpus(folder / "data", documents=12)
    runs.write_corpus(folder / "other", documents=3)
    options = [*SCHEDULE, f"--config.data.validation_source=text:{folder}/other/*.txt"]
    assert launch.main(runs.tiny(f"text:{folder}/data/*.txt", folder / "run", *options)) == 0
    return folder


@pytest.fixture
def there(begun, tmp_path):
    """Copies of both: the run, whose config names them where they are now."""
    folder = shutil.copytree(begun, tmp_path / "there")
    config = folder / "run" / "config.json"
    config.write_text(config.read_text().replace(str(begun), str(folder)))
    return folder


def more(there, *flags):
    return launch.main([f"--workdir={there}/run", "--config.train.steps=3", *flags])


def add(there):
    (there / "data" / "new.txt").write_text("something new")
    return "data.source: new.txt is new (13 bytes)"


def take_away(there):
    size = (there / "data" / "3.txt").stat().st_size
    (there / "data" / "3.txt").unlink()
    return f"data.source: 3.txt is gone ({size:,} bytes)"


def edit(there):
    """One byte: the size does not tell it."""
    file = there / "data" / "5.txt"
    content, stat = file.read_bytes(), file.stat()
    file.write_bytes(content[:-1] + b"?")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    return "data.source: 5.txt has other content"


def lengthen(there):
    file = there / "other" / "1.txt"
    size = file.stat().st_size
    file.write_bytes(file.read_bytes() + b" and more")
    return f"data.validation_source: 1.txt had {size} bytes and has {size + 9}"


def other_tokenizer(there):
    Tokenizer.train("characters", ["abc"]).save(there / "run" / "tokenizer.json")
    return "tokenizer.json differs"


def unreadable(there):
    (there / "run" / "data.json").write_text('{"sources": ')
    return "data.json: not readable"


@pytest.mark.parametrize("change", [add, take_away, edit, lengthen, other_tokenizer, unreadable])
def test_other_data_are_refused_in_one_line_that_says_what_changed(capfd, there, change):
    message = change(there)
    before = runs.listing(there)
    capfd.readouterr()
    assert more(there) == 2
    error = capfd.readouterr().err
    assert message in error and "--accept_data continues" in error and error.count("\n") == 1
    assert runs.listing(there) == before


def test_the_same_data_are_the_same_wherever_and_whenever_they_were_written(capfd, there):
    """Touched, and in another folder that the command line names; of the run that is what is kept then."""
    for file in (there / "data").iterdir():
        os.utime(file)
    moved = shutil.copytree(there / "data", there / "moved")
    shutil.rmtree(there / "data")
    kept = (there / "run" / "data.json").read_text()
    assert more(there, f"--config.data.source=text:{moved}/*.txt") == 0
    config = json.loads((there / "run" / "config.json").read_text())
    assert config["data"]["source"] == f"text:{moved}/*.txt"
    assert (there / "run" / "data.json").read_text() == kept
    capfd.readouterr()
    options = [f"--config.data.source=text:{there}/other/*.txt", "--config.train.steps=4"]
    assert launch.main([f"--workdir={there}/run", *options]) == 2
    assert "data.source: " in capfd.readouterr().err
    options[0] = f"--config.data.source=jsonl:{moved}/*.txt"
    assert launch.main([f"--workdir={there}/run", *options]) == 2
    assert "belongs to another config: data.source" in capfd.readouterr().err
    shutil.rmtree(moved)  # what is trained is not what is needed to use it
    assert launch.main([f"--workdir={there}/run", "--mode=predict", "--prompt=x"]) == 0


@pytest.mark.thorough
def test_other_data_can_be_accepted_and_are_then_those_of_the_run(capfd, there):
    add(there)
    assert more(there, "--accept_data", "--config.parallel.mesh.fsdp=2") == 0  # and on another mesh
    assert '"new.txt"' in (there / "run" / "data.json").read_text()
    assert launch.main([f"--workdir={there}/run", "--config.train.steps=4"]) == 0
    capfd.readouterr()
    assert launch.main([f"--workdir={there}/run", "--mode=evaluate", "--accept_data"]) == 2
    assert "--accept_data: only --mode=train, fork, batch and replay take it" in capfd.readouterr().err


def test_an_older_folder_goes_on_and_keeps_from_then_on_what_its_data_are(there):
    (there / "run" / "data.json").unlink()
    add(there)
    assert more(there) == 0
    assert '"new.txt"' in (there / "run" / "data.json").read_text()


def test_changes_are_those_of_names_sizes_and_content(rng, tmp_path):
    for name in ("a", "b/c"):
        (tmp_path / "x" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "x" / name).write_bytes(rng.bytes(100))
    files = [tmp_path / "x" / "a", tmp_path / "x" / "b" / "c"]
    found = contents_of(files, tmp_path / "cache")
    assert [*found] == ["a", "b/c"] and [size for size, _ in found.values()] == [100, 100]
    shutil.copytree(tmp_path / "x", tmp_path / "y")
    copies = [tmp_path / "y" / "a", tmp_path / "y" / "b" / "c"]
    assert changes({"source": found}, {"source": contents_of(copies, tmp_path / "cache")}) == ""
    assert changes({"source": {"a": found["a"]}}, {"source": {"z": found["a"]}}) == ""  # one file, renamed
    swapped = dict(zip(found, reversed(found.values()), strict=True))
    assert changes({"source": found}, {"source": swapped}).count("has other content") == 2
    assert changes({"source": {"s": "v1"}}, {"source": {"s": "v2"}}) == "data.source: s was 'v1' and is 'v2'"
    many = {str(i): [1, "x"] for i in range(9)}
    assert changes({}, {"validation_source": many}).endswith("3 is new (1 bytes) and 5 more")


@pytest.mark.thorough
def test_a_lost_tokenizer_is_learnt_again_only_where_it_is_the_same(tmp_path, capfd):
    source = runs.write_corpus(tmp_path / "data", documents=30)
    assert runs.train(source, tmp_path / "run", "--config.data.tokenizer=characters") == "finished"
    (tmp_path / "run" / "tokenizer.json").unlink()
    evaluate = [f"--workdir={tmp_path}/run", "--mode=evaluate"]
    assert launch.main(evaluate) == 0
    for number in range(30):
        (tmp_path / "data" / f"{number}.txt").write_text(f"other letters, {number}" * 40)
    capfd.readouterr()
    assert launch.main(evaluate) == 2
    lost = f"{tmp_path}/run/tokenizer.json: it is missing, and the present data give a different one"
    assert capfd.readouterr().err == f"error: {lost}\n"
    Tokenizer.train("characters", ["other"]).save(tmp_path / "run" / "tokenizer.json")
    launch.main(evaluate)
    said = f"warning: {tmp_path}/run/tokenizer.json is not the one that the run was trained with\n"
    assert capfd.readouterr().err.startswith(said)


@pytest.mark.thorough
def test_validation_that_is_in_training_is_refused_before_anything_is_written(capfd, tmp_path):
    source = runs.write_corpus(tmp_path / "data", documents=12)
    keys = [f"--config.data.validation_source=text:{tmp_path}/data/3.txt"]
    assert launch.main(runs.tiny(source, tmp_path / "run", *keys)) == 2
    said = f"1 of 1 validation records are also in training, the first at {tmp_path}/data/3.txt:1 (3.txt: a"
    assert said in capfd.readouterr().err and not (tmp_path / "run").exists()
    assert launch.main(runs.tiny(source, tmp_path / "run", *keys, "--config.data.overlap=1", *SCHEDULE)) == 0
    assert "1 of 1 validation records are also in training\n" in capfd.readouterr().out
    assert launch.main(runs.tiny(source, tmp_path / "run", *keys, *SCHEDULE, "--config.train.steps=3")) == 0


@pytest.mark.thorough
def test_a_run_of_another_rule_goes_on_with_its_splits(tmp_path):
    """By its folder and by the config that it started with, whose key says nothing of it."""
    (tmp_path / "a.txt").write_text("".join(f"a line with the number {i % 90}\n" for i in range(400)))
    begin = runs.tiny(f"text:{tmp_path}/a.txt", tmp_path / "run", *SCHEDULE, "--config.data.document=line")
    assert launch.main([*begin, "--config.data.split_by=place", "--config.data.overlap=1"]) == 0
    config = tmp_path / "run" / "config.json"
    values = json.loads(config.read_text())
    assert values["data"].pop("split_by") == "place" and values["data"].pop("overlap") == 1.0
    config.write_text(json.dumps(values))

    def validation():
        source = opening.reopen_run(tmp_path / "run").experiment.data.source("validation")
        return [source.text(i) for i in range(len(source))]

    before = validation()
    assert before == [f"a line with the number {i % 90}\n" for i in range(360, 360 + len(before))]
    assert len(before) in (20, 21)
    assert launch.main([f"--workdir={tmp_path}/run", "--config.train.steps=3"]) == 0
    assert launch.main([*begin, "--config.train.steps=4"]) == 0
    assert json.loads(config.read_text())["data"]["split_by"] == "place" and validation() == before
