import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import pytest

import launch
from commands import config
from tests import runs

pytestmark = pytest.mark.usefixtures("in_root")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return runs.write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory, source):
    """The folder of a run of two steps."""
    folder = tmp_path_factory.mktemp("run") / "tiny"
    assert launch.main(runs.tiny(source, folder)) == 0
    return folder


def fails(capfd, arguments: list[str]) -> str:
    """The one line that a command which fails through its user's fault prints."""
    capfd.readouterr()
    assert launch.main(arguments) == 2
    out, error = capfd.readouterr()
    assert out == "" and error.startswith("error: ") and error.count("\n") == 1 and error.endswith("\n"), (
        error
    )
    return error.removeprefix("error: ")[:-1]


BEFORE_THE_DATA = {
    "--mode=trian": "--mode: 'trian'; did you mean 'train'?",
    "--workdri=x": "--workdri=x: no such flag; did you mean --workdir?",
    "extra": "extra: no such flag",
    "--seed=x --mode=predict": "--seed: invalid int value: 'x'",
    "--temperature=1": "--temperature: only --mode=predict takes it",
    "--config.seed": "--config.seed: it has no value",
    "--config=nope.py": "there is no file 'nope.py'",
    "--config=configs/lm.py:huge": "configs/lm.py: 'huge' is not a preset of it; it has tiny",
    "--config.experiment=lm": "config.experiment: 'lm' is not an experiment; expected one of language_",
    "--config.experiment=language_modelling": "did you mean 'language_modeling'?",
    "--config.model.num_layer=3": "config.model.num_layer: unknown key; did you mean --config.model",
    "--config.modle.num_layers=3": "config.modle.num_layers: unknown key; did you mean --config.model",
    "--config.seed.x=3": "config.seed.x: 'seed' is a single value; it has no keys",
    "--config.model=3": "config.model: 3 (int); expected a group of keys",
    "--config.model.num_layers=three": "config.model.num_layers: 'three' (str); expected int",
    "--config.model.num_layers=2.5": "config.model.num_layers: 2.5 (float); expected int",
    "--config.model.tie_embeddings=7": "config.model.tie_embeddings: 7 (int); expected bool",
    "--config.model.norm=batch": "config.model.norm: 'batch'; expected one of 'layer', 'rms'",
    "--config.model.num_heads=3": "config.model.d_model: 32 is not divisible by num_heads 3",
    "--config.optimizer.name=adamv": "config.optimizer.name: optax has no optimizer 'adamv'; did you mean",
    "--config.optimizer.name=adamw --config.optimizer.arguments.beta=1": "arguments.beta: adamw takes only",
    "--config.parallel.mesh.data=3": "parallel.mesh: data 3 x fsdp 1 x expert 1 x context 1 x tensor 1",
    "--config.train.batch_size=9": "train.batch_size: 9 is not a multiple of 2",
    "--config.train.steps=0": "config.train.steps: 0",
    "--config.data.source=text:/nowhere/*.txt": "/nowhere/*.txt",
    "--config.data.source=xls:x": "config.data.source: 'xls:x'",
    "--config.data.sequence_length=4096": "config.data.sequence_length: 4096 is longer than model.max_length",
    "--config.sample.max_new_tokens=-1": "config.sample.max_new_tokens: -1; expected at least 1",
    "--config.seed=-1": "config.seed: -1; expected a number from 0 to 2^32 - 1",
    "--config.model.position_base=0": "config.model.position_base: 0.0; expected more than 0",
    "--config.model.norm_epsilon=-1": "config.model.norm_epsilon: -1.0; expected more than 0",
    "--config.model.position_base=1e999": "config.model.position_base: inf (float); expected a finite number",
    "--config.data.vocab_size=300": "config.data.vocab_size: 300 does nothing with tokenizer 'bytes'; leave",
    "--config.data.tokenizer=pieces --config.data.vocab_size=300": "data.tokenizer: 'pieces' is not a file",
    "--config.optimizer.schedule=constant --config.optimizer.decay_steps=1": "decay_steps: 1 does nothing "
    "with schedule 'constant', only with 'cosine', 'wsd'; leave it at 0",
    "--config.model.pattern_size=8": "config.model.pattern_size: 8 does nothing with pattern 'full'; leave",
    "--config.model.lora_alpha=8": "config.model.lora_alpha: 8.0 does nothing with lora_rank 0; leave it at",
    "--config.loss.model_terms.load_balance=abc": "loss.model_terms.load_balance: 'abc' (str); expected flo",
    "--config.loss.model_terms.load_balance=0.1": "loss.model_terms.load_balance: the model's layers re",
    "--config.loss.model_terms.load_balence=0.1 --config.model.num_experts=4": "no such term; expected one",
    "--config.model.kernel=cudnn": "kernel: 'cudnn' does not support these inputs: ",
    "--config.model.kernel=ring --config.data.sequence_length=30 --config.parallel.mesh.context=2 "
    "--config.parallel.mesh.data=4": "kernel: 'ring' does not support these inputs: ",
    "--config.train.keep_best=eval/los": "config.train.keep_best: 'eval/los' is not measured; there are",
    "--config.train.keep_best=-eval/bleu": "keep_best: 'eval/bleu' is not measured; there are eval/",
    "--config.optimizer.train_only=haed": "train_only: no parameter's name starts with 'haed'; names there: ",
    "--config.optimizer.train_only=lora,atention": "starts with 'lora'",
    "--config.optimizer.frozen_layers=99": "config.optimizer.frozen_layers: 99; the model has ",
    "--workdir=gs://bucket/run": "--workdir: gs://bucket/run is on another system; expected",
    "--config.initialize_strict=false": "config.initialize_strict: False does nothing with initialize_from",
}


@pytest.mark.parametrize("arguments", BEFORE_THE_DATA)
def test_what_the_user_got_wrong_is_one_line_and_nothing_is_written(capfd, tmp_path, source, arguments):
    line = fails(capfd, runs.tiny(source, tmp_path / "run", *arguments.split()))
    assert BEFORE_THE_DATA[arguments] in line
    assert not (tmp_path / "run").exists() and not (runs.ROOT / "gs:").exists()


def test_a_folder_whose_name_is_not_utf8_is_refused(capfd, tmp_path, source):
    folder = tmp_path / os.fsdecode(b"run\xe9")
    assert " is not UTF-8; expected a path that is" in fails(capfd, runs.tiny(source, folder))
    assert not folder.exists()


def test_the_config_of_a_runs_folder_is_no_config_file(capfd, tmp_path, trained):
    path = trained / "config.json"
    line = fails(capfd, [f"--config={path}", f"--workdir={tmp_path / 'run'}"])
    assert line.startswith(f"--config: {path} is not a program; --workdir resumes a run")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def get_config(:", "{path}, line 1: invalid syntax"),
        ("import base_\n", "{path}, line 1: ModuleNotFoundError: No module named 'base_'"),
        ("\ndef get_config():\n    return 1 / 0\n", "{path}, line 3: ZeroDivisionError: division by zero"),
        ("x = 1\n", "{path}: there is no get_config() in it"),
        (
            "def get_config():\n    pass\n",
            "{path}: get_config() should return a ConfigDict, not NoneType",
        ),
        (
            "from ml_collections import config_dict\nfrom configs import base\n\n\ndef get_config():\n"
            "    config = base.defaults('vision')\n"
            "    config.seed = config_dict.required_placeholder(int)\n    return config\n",
            "{path}: RequiredValueError: None value found in required reference",
        ),
        (
            "from configs import base\n\n\ndef get_config():\n    config = base.defaults('vision')\n"
            "    config.seed = 'x'\n    return config\n",
            "{path}, line 6: TypeError",
        ),
        (
            "from configs import base\n\n\ndef get_config():\n    config = base.defaults('vision')\n"
            "    config.model.d_modle = 64\n    return config\n",
            '{path}, line 6: AttributeError: \'Key "d_modle" does not exist. Did you mean "d_model" ',
        ),
    ],
)
def test_a_config_file_that_fails_is_named_with_its_line(capfd, tmp_path, code, message):
    path = tmp_path / "mine.py"
    path.write_text(code)
    line = fails(capfd, [f"--config={path}", f"--workdir={tmp_path / 'run'}"])
    assert line.startswith(message.format(path=path))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("content", ["", " \n", b"caf\xe9\n"])
def test_data_that_cannot_be_read_is_named_and_nothing_is_written(capfd, tmp_path, content):
    file = tmp_path / "corpus.txt"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    line = fails(capfd, runs.tiny(f"text:{file}", tmp_path / "run"))
    assert "corpus.txt" in line
    assert not (tmp_path / "run").exists()


def test_a_run_has_everything_in_its_folder(trained):
    there = {path.name for path in trained.iterdir()}
    wanted = "config.json tokenizer.json checkpoints metrics.jsonl samples report.md report.png"
    assert there >= set(wanted.split()) and any(name.startswith("events.out.tfevents.") for name in there)
    config = json.loads((trained / "config.json").read_text())
    assert config["model"]["d_model"] == 32 and config["train"]["keep_last"] >= 1


def test_the_last_lines_say_where_everything_is_and_what_to_try(capfd, trained, source):
    capfd.readouterr()
    assert launch.main(runs.tiny(source, trained)) == 0  # it is finished: nothing to train, and all to say
    out = capfd.readouterr().out
    assert "gzip -9" in out and "xz -9e" in out and "metrics.jsonl" in out
    sample = next((trained / "samples").glob("*.txt")).read_text()
    assert sample in out
    commands = [line.strip() for line in out.splitlines() if line.startswith("  python launch.py")]
    assert len(commands) == 3
    assert all(f"--workdir={trained}" in command for command in commands)


def test_a_folder_of_another_config_is_left_alone(capfd, trained, source):
    before = runs.listing(trained)
    line = fails(capfd, runs.tiny(source, trained, "--config.model.d_ff=96", "--config.seed=1"))
    assert line.startswith(
        f"--workdir: {trained} belongs to another config: seed 0 (here 1), model.d_ff 64 (here 96)"
    )
    line = fails(capfd, runs.tiny(source, trained, "--config.train.batch_size=16"))
    assert "train.batch_size 8 (here 16)" in line
    line = fails(capfd, runs.tiny(source, trained, "--config.train.steps=4", "--config.model.kernel=cudnn"))
    assert line.startswith("kernel: 'cudnn' does not support these inputs: ")
    line = fails(
        capfd, runs.tiny(source, trained, "--config.train.steps=3", "--config.optimizer.decay_steps=1")
    )
    assert "optimizer.decay_steps 0 (here 1)" in line
    assert runs.listing(trained) == before


def test_a_folder_from_before_some_keys_existed_is_the_run_it_was(capfd, tmp_path, trained, source):
    folder = shutil.copytree(trained, tmp_path / "older")
    written = folder / "config.json"
    complete = json.loads(written.read_text())
    older = json.loads(written.read_text())
    del older["seed"], older["parallel"], older["train"]["average_last"], older["model"]["sinks"]
    del older["optimizer"]["arguments"], older["sample"]["prompt"]
    written.write_text(json.dumps(older))
    assert launch.main([f"--workdir={folder}", "--mode=evaluate"]) == 0
    options = ["--config.sample.prompt=7", "--config.sample.max_new_tokens=2"]  # the key that is not there
    assert launch.main([f"--workdir={folder}", "--mode=predict", "--prompt=x", *options]) == 0
    assert launch.main(runs.tiny(source, folder)) == 0  # it is finished, and of the same config
    assert json.loads(written.read_text()) == complete
    del older["model"]["d_ff"]  # 64 there, and 1024 where nothing is said
    written.write_text(json.dumps(older))
    line = fails(capfd, runs.tiny(source, folder))
    assert "belongs to another config: model.d_ff 1024 (here 64); choose another folder, or" in line
    del older["experiment"]
    written.write_text(json.dumps(older))
    assert "config.experiment: None is not an experiment" in fails(capfd, [f"--workdir={folder}"])
    for no_config in ("{", "[]"):
        written.write_text(no_config)
        assert str(written) in fails(capfd, [f"--workdir={folder}"])


@pytest.mark.thorough
def test_a_key_that_does_nothing_may_have_been_another_in_a_folder_from_before(capfd, tmp_path, source):
    """Its default may have changed since; of a key that did something that is refused."""
    folder = tmp_path / "run"
    options = ["--config.optimizer.schedule=constant"]
    same = runs.tiny(source, folder, *options)
    assert launch.main(same) == 0
    written = folder / "config.json"
    older = json.loads(written.read_text())
    older["optimizer"] |= {"final_fraction": 0.5, "decay_steps": 1}
    older["data"]["vocab_size"] += 1  # which the bytes are whatever is said
    written.write_text(json.dumps(older))
    assert launch.main([*same, "--config.train.steps=3"]) == 0
    assert json.loads(written.read_text())["optimizer"]["final_fraction"] == 0
    older["optimizer"]["schedule"] = "cosine"
    written.write_text(json.dumps(older))
    line = fails(capfd, [*same, "--config.train.steps=3"])
    assert line.endswith(
        "belongs to another config: optimizer.schedule 'cosine' (here 'constant'); choose another folder, "
        "or continue in one with --mode=fork"
    )
    cosine = [*same, "--config.optimizer.schedule=cosine", "--config.train.steps=3"]
    assert "optimizer.decay_steps 1 (here 0), optimizer.final_fraction 0.5 (here 0.0)" in fails(capfd, cosine)


def test_a_folder_of_something_else_is_left_alone(capfd, tmp_path, source):
    (tmp_path / "tokenizer.json").write_text("{}")
    line = fails(capfd, runs.tiny(source, tmp_path))
    assert "tokenizer.json exists without a config.json" in line
    assert runs.listing(tmp_path) == {"tokenizer.json": b"{}"}
    file = tmp_path / "file"
    file.write_text("")
    assert fails(capfd, runs.tiny(source, file)) == f"--workdir: {file} is a file"


def test_a_plan_needs_a_config_or_a_run(capfd):
    line = fails(capfd, ["--mode=plan"])
    assert line == "--config or --workdir is required, such as --config=configs/lm.py (--mode=plan)"


@pytest.mark.parametrize("mode", ["evaluate", "predict --prompt=x"])
def test_other_modes_need_a_run(capfd, tmp_path, mode):
    arguments = [f"--mode={part}" if i == 0 else part for i, part in enumerate(mode.split())]
    assert fails(capfd, arguments) == f"--workdir is required (--mode={mode.split()[0]})"
    assert fails(capfd, [*arguments, "--workdir=/nowhere"]) == "--workdir: /nowhere does not exist"
    assert "has no config.json" in fails(capfd, [*arguments, f"--workdir={tmp_path}"])
    assert "--config" in fails(capfd, [*arguments, "--config=configs/lm.py"])
    (tmp_path / "config.json").write_text("{}")
    assert "has no checkpoints yet" in fails(capfd, [*arguments, f"--workdir={tmp_path}"])
    (tmp_path / "config.json").write_text("{")
    assert "config.json: not readable as JSON" in fails(capfd, [*arguments, f"--workdir={tmp_path}"])


def test_evaluate_measures_what_training_measured_last(capfd, trained):
    capfd.readouterr()
    assert launch.main([f"--workdir={trained}", "--mode=evaluate", "--config.train.evaluate_batches=1"]) == 0
    printed = runs.measured(capfd.readouterr().out)
    last = json.loads((trained / "metrics.jsonl").read_text().splitlines()[-1])
    assert {"eval/loss", "eval/perplexity", "eval/bits_per_byte"} <= set(printed)
    for name, value in printed.items():
        assert float(value) == pytest.approx(last[name], rel=1e-5), name


def predicted(capfd, trained, *arguments) -> str:
    capfd.readouterr()
    assert launch.main([f"--workdir={trained}", "--mode=predict", *arguments]) == 0
    return capfd.readouterr().out


def test_a_prompt_is_completed_as_it_is(capfd, trained):
    out = predicted(capfd, trained, "--prompt=two\nlines", "--num_samples=2", "--max_new_tokens=4")
    assert out.startswith("two\nlines") and out.count("two\nlines") == 2 and out.endswith("\n")


@pytest.mark.thorough
def test_the_seed_decides_the_samples(capfd, trained):
    options = ["--prompt=alpha", "--temperature=1.5", "--max_new_tokens=16"]
    first = predicted(capfd, trained, *options, "--seed=1")
    assert predicted(capfd, trained, *options, "--seed=1") == first
    assert predicted(capfd, trained, *options, "--seed=2") != first


@pytest.mark.thorough
def test_each_line_is_answered_by_one_line_per_sample(capfd, tmp_path, trained):
    texts, answers = tmp_path / "texts", tmp_path / "answers"
    texts.write_text("alpha\n\nbeta gamma\r\nlast", encoding="utf-8")
    options = [f"--input={texts}", "--temperature=3", "--max_new_tokens=32", "--num_samples=2"]
    out = predicted(capfd, trained, *options)
    assert out.count("\n") == 8 and "\r" not in out
    assert predicted(capfd, trained, *options, f"--output={answers}") == ""
    assert answers.read_text(encoding="utf-8") == out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["answers", "texts"]


def test_lines_stay_lines():
    from commands.support.texts import one_line

    for text in ("a\nb", "a\\nb", "a\r\n\\", "plain"):
        assert "\n" not in one_line(text) and "\r" not in one_line(text)
        assert one_line(text).encode().decode("unicode_escape") == text


def test_what_is_wrong_with_predict_is_one_line(capfd, tmp_path, trained):
    run = [f"--workdir={trained}", "--mode=predict"]
    texts = tmp_path / "texts"
    texts.write_text("")
    assert "is empty" in fails(capfd, [*run, f"--input={texts}"])
    texts.write_bytes(b"fine\ncaf\xe9\n")
    assert f"{texts}:2 is not UTF-8" in fails(
        capfd, [*run, f"--input={texts}", f"--output={tmp_path / 'out'}"]
    )
    assert not (tmp_path / "out").exists()
    texts.write_text("fine\n")
    assert (
        fails(capfd, [*run, f"--input={texts}", f"--output={texts}"]) == f"--output: {texts} is the input too"
    )
    assert texts.read_text() == "fine\n"
    assert "No such file" in fails(capfd, [*run, f"--input={texts}", f"--output={tmp_path}/no/where"])
    assert "there is no file" in fails(capfd, [*run, "--input=/nowhere"])
    assert "give one of them" in fails(capfd, [*run, "--input=x", "--prompt=x"])
    for name, value in {
        "max_new_tokens": -1,
        "top_p": 2,
        "top_k": "x",
        "temperature": -1,
        "num_samples": 0,
        "min_p": 1.5,
    }.items():
        line = fails(capfd, [*run, "--prompt=x", f"--{name}={value}"])
        assert line.startswith(f"config.sample.{name}: ")
    assert fails(capfd, [*run, "--prompt=x", "--stop="]) == (
        "config.sample.stop: ''; expected strings of at least one character"
    )


def test_a_special_file_is_written_to_and_not_replaced(capfd, trained):
    predicted(capfd, trained, "--prompt=x", f"--output={os.devnull}", "--max_new_tokens=1")
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


@pytest.mark.parametrize("name", ["run[1]", "run*", "what?/run"])
def test_a_folder_that_is_a_pattern_is_refused(capfd, tmp_path, source, name):
    line = fails(capfd, runs.tiny(source, tmp_path / name))
    assert line.startswith(f"--workdir: {tmp_path / name} ") and "has *, ? or [ in its path" in line


def test_without_a_workdir_the_config_names_it():
    assert launch.parse(["--config=configs/lm.py"])[0].workdir == "runs/lm"
    assert launch.parse(["--config=/x/lm.py:tiny"])[0].workdir == "runs/lm-tiny"
    assert launch.parse(["--config=configs/lm.py", "--workdir=w"])[0].workdir == "w"


def test_values_are_read_as_the_key_has_them():
    from workdir.opening import read_config

    given = {
        "train.steps": ("1e3", 1000),
        "optimizer.learning_rate": ("3e-4", 3e-4),
        "model.use_bias": ("true", True),
        "model.tie_embeddings": ("False", False),
        "data.source": ("text:/a=b, 1", "text:/a=b, 1"),
        "sample.prompt": ("17", "17"),
        "optimizer.arguments.b2": ("0.95", 0.95),
        "optimizer.arguments.nesterov": ("true", True),
        "optimizer.rules": ('{"match": "table", "frozen": true}', [{"match": "table", "frozen": True}]),
        "evaluate.sets": ('{"wiki": "text:a"}', {"wiki": "text:a"}),
        "model.layers": ("('a', 'b')", ("a", "b")),
    }
    values = read_config("configs/lm.py:tiny", [(key, text) for key, (text, _) in given.items()])
    for key, (_, expected) in given.items():
        group = values
        for part in key.split("."):
            group = group[part]
        assert group == expected and type(group) is type(expected), key


def test_overrides_come_with_an_equals_sign_or_a_space():
    plain, overrides = launch.split_overrides(["--a", "--config.x.y", "-1", "--config.z=b=c", "--workdir=w"])
    assert plain == ["--a", "--workdir=w"] and overrides == [("x.y", "-1"), ("z", "b=c")]
    assert launch.split_overrides(["--config.x", ""]) == ([], [("x", "")])


def test_the_environment_overrules_our_settings():
    code = """
        import os, sys, launch
        launch.prepare(launch.parse(["--config=configs/lm.py"])[0])
        assert "jax" not in sys.modules  # which reads them when it is loaded
        print(*map(os.environ.get, sys.argv[1:]))
    """
    settings = ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS")
    others = {name: value for name, value in os.environ.items() if name not in settings}
    for given, expected in (
        ({}, ["/home/me/transformer/xla", "0.1"]),
        (
            {"JAX_COMPILATION_CACHE_DIR": "/somewhere"},
            ["/somewhere", "0.1"],
        ),
    ):
        environment = others | {"XDG_CACHE_HOME": "/home/me"} | given
        command = [sys.executable, "-c", textwrap.dedent(code), *settings]
        done = subprocess.run(command, cwd=runs.ROOT, env=environment, capture_output=True, text=True)
        assert done.stdout.split() == expected, done.stderr


def test_processes_that_do_not_meet_are_an_error_in_one_line(capfd, monkeypatch):
    assert fails(capfd, ["--config=configs/lm.py", "--coordinator=localhost:1"]).startswith("--coordinator: ")


@pytest.mark.thorough
def test_a_reader_that_leaves_early_is_no_error(trained):
    arguments = [f"--workdir={trained}", "--mode=predict", "--max_new_tokens=1"]
    read, write = os.pipe()
    process = runs.start(arguments, stdin=runs.subprocess.PIPE, stdout=write)
    os.close(write)
    process.stdin.write("alpha\n")
    process.stdin.flush()
    os.close(read)  # no one listens any more when the first answer comes
    _, error = process.communicate("beta\n" * 100, timeout=120)
    assert process.returncode == 0 and error == ""


def test_help_is_short(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    with pytest.raises(SystemExit) as end:
        launch.main(["--help"])
    assert end.value.code == 0
    assert len(capsys.readouterr().out.splitlines()) < 50


@pytest.mark.thorough
def test_a_question_from_the_keyboard_is_answered_before_the_next(trained):
    ours, theirs = os.openpty()
    process = runs.start([f"--workdir={trained}", "--mode=predict", "--max_new_tokens=1"], stdin=theirs)
    try:
        assert "one text per line" in process.stderr.readline()
        for _ in range(2):
            os.write(ours, b"alpha\n")
            assert process.stdout.readline().endswith("\n")
        os.write(ours, b"\x04")
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()
        os.close(ours)
        os.close(theirs)


@pytest.mark.thorough
def test_bits_per_byte_is_left_out_where_tokens_do_not_give_the_text_back(capfd, tmp_path, source):
    """Words in lower case without their spaces are less than the text: what is dropped costs no bits."""
    keys = ["--config.data.tokenizer=words", "--config.data.vocab_size=50"]
    assert launch.main(runs.tiny(source, tmp_path / "run", *keys)) == 0
    out, error = capfd.readouterr()
    (line,) = [line for line in error.splitlines() if "bits_per_byte" in line]
    assert "bits_per_byte is left out: of " in line and "train texts, " in line and "of all bytes" in line
    assert (
        "eval/bits_per_byte" not in out
        and "bits per byte" not in out
        and "gzip" not in out
        and "eval/perplexity" in out
    )
    measured = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert "eval/loss" in measured and not [name for name in measured if "bits" in name]
    assert launch.main([f"--workdir={tmp_path / 'run'}", "--mode=evaluate"]) == 0
    out, error = capfd.readouterr()
    assert "bits_per_byte is left out" in error and "eval/bits_per_byte" not in out


def test_an_interruption_while_the_program_leaves_is_silent():
    code = """
        import atexit, os, runpy, signal, sys
        atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))
        sys.argv = ["launch.py", "--mode=nothing"]
        runpy.run_path("launch.py", run_name="__main__")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.stderr.startswith("error: --mode") and done.stderr.count("\n") == 1
    assert done.returncode == -signal.SIGINT


def test_a_program_that_exhausts_the_memory_says_where_what_saves_it_is_listed(monkeypatch):
    def exhaust(flags, overrides):
        jax.block_until_ready(jnp.zeros((1 << 30, 1 << 14)))

    monkeypatch.setattr(config, "run", exhaust)
    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED") as found:
        launch.main(["--mode=config", "--workdir=runs/any"])
    note = found.value.__notes__[-1]
    page, heading = note.partition(": ")[2].split(", ")[:2]
    assert f"## {heading}" in (runs.ROOT / page).read_text()


REMOTE = {
    "--mode=sweep --sweep=seed=0,1 --workdir=gs://bucket/sweep": "--workdir: gs://bucket/sweep",
    "--mode=compare --b=seed=1 --workdir=s3://bucket/compare": "--workdir: s3://bucket/compare",
    "--mode=scaling --budgets=1e9,2e9 --depths=1,2,3,4 --workdir=gs://bucket/law": "--workdir: gs://bucket/law",
    "--mode=coordinates --output=gs://bucket/picture.png": "--output: gs://bucket/picture.png",
    "--mode=evaluate --workdir=runs/lm --input=text:gs://bucket/*.txt": "--input: text:gs://bucket/*.txt",
    "--mode=table --runs runs/lm gs://bucket/*": "--runs: gs://bucket/*",
    "--mode=fork --workdir=runs/lm --to=gs://bucket/branch": "--to: gs://bucket/branch",
    "--mode=sweep --sweep data.cache_dir=gs://bucket/a,gs://bucket/b": "config.data.cache_dir: 'gs://bucket/a'",
    "--config.data.cache_dir=gs://bucket/cache": "config.data.cache_dir: 'gs://bucket/cache'",
    "--config.data.source=text:gs://bucket/*.txt": "config.data.source: 'text:gs://bucket/*.txt'",
    '--config.data.sources={"text:gs://bucket/*.txt":1}': "config.data.sources: ",
    "--config.data.tokenizer=https://host/tokenizer.json": "config.data.tokenizer: 'https://host/tokenizer.json'",
    "--config.evaluate.sets.wiki=text:s3://bucket/wiki": "config.evaluate.sets: ",
    "--config.evaluate.also=choices:gs://bucket/x.jsonl": "config.evaluate.also: 'choices:gs://bucket/x.jsonl'",
    "--config.initialize_from=gs://bucket/run": "config.initialize_from: gs://bucket/run is on",
}


@pytest.mark.parametrize("arguments", REMOTE)
def test_an_address_of_another_system_is_refused_by_every_flag_and_key(
    capfd, tmp_path, monkeypatch, arguments
):
    monkeypatch.chdir(tmp_path)
    line = fails(capfd, ["--config=configs/lm.py:tiny", *arguments.split()])
    assert REMOTE[arguments] in line
    assert line.endswith("expected a path of this system; a bucket can be mounted (gcsfuse)")
    assert not [*tmp_path.iterdir()]
