"""Flags belong to commands, and are checked before anything slow is imported."""

import subprocess
import sys

import pytest

import launch
from commands import COMMANDS, find_command
from commands.support.decoding_flags import decoding_keys
from tests import runs
from transformer.errors import UserError


def test_flags_of_every_command_are_checked_without_jax():
    code = "import launch, sys; launch.why_unknown('--x', 'train'); sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=runs.ROOT).returncode == 0


@pytest.mark.parametrize("mode", COMMANDS)
def test_a_command_has_its_own_help(capsys, mode):
    with pytest.raises(SystemExit) as end:
        launch.main([f"--mode={mode}", "--help"])
    out = capsys.readouterr().out
    assert end.value.code == 0
    own = launch.Parser(add_help=False)
    find_command(mode).add_flags(own)
    actions = [action for action in own._actions if action.option_strings]
    assert actions and all(action.option_strings[0] in out and action.help for action in actions)
    other = "--analogy" if mode != "analyze" else "--prompt"
    assert other not in out.partition("options:")[2]


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        (
            "--config=configs/lm.py --mode=evaluate",
            "--config: only --mode=train, config, plan, sweep, compare, scaling, coordinates, twin and",
        ),
        ("--accept_data --mode=config", "--accept_data: only --mode=train, fork, batch and replay take it"),
        (
            "--step=1",
            "--step: only --mode=evaluate, predict, score, embed, analyze, inspect, batch, replay and",
        ),
        (
            "config.model.d_model=3",
            "config.model.d_model=3: no such flag; did you mean --config.model.d_model=3?",
        ),
        ("--model.d_model 3", "--model.d_model: no such flag; did you mean --config.model.d_model?"),
        ("-config.seed=3", "-config.seed=3: no such flag; did you mean --config.seed=3?"),
        ("configs/lm.py:tiny", "configs/lm.py:tiny: no such flag; did you mean --config=configs/lm.py:tiny?"),
        (
            "--mode=predict anything",
            "anything: no such flag; expected one of --help, -h, --mode, --workdir, ",
        ),
        ("--mode=predict --workdir=x --prompt=\udcff", "--prompt: b'\\xff' is not UTF-8"),
        ("--config=x --config.data.source=\udcff", "--config.data.source: b'\\xff' is not UTF-8"),
    ],
)
def test_a_flag_of_another_command_is_named_with_those_that_take_it(flag, said):
    with pytest.raises(UserError) as raised:
        launch.parse(flag.split())
    assert str(raised.value).startswith(said)
    assert "--budgets" not in str(raised.value)  # of scaling alone


def test_a_decoding_flag_without_its_key_is_named_as_the_flag():
    values = {"experiment": "translation", "generate": {"max_new_tokens": 8, "beam_size": 4}}
    assert decoding_keys(values, {"max_new_tokens": "3"}) == [("generate.max_new_tokens", "3")]
    with pytest.raises(UserError, match=r"^--min_p: .* no generate.min_p; generate has max_new_tokens"):
        decoding_keys(values, {"min_p": "0.1"})
    with pytest.raises(UserError, match=r"^--n_best: .* no sample.n_best; sample has max_new_tokens"):
        decoding_keys({"experiment": "language_modeling", "sample": {"max_new_tokens": 8}}, {"n_best": "2"})
    with pytest.raises(UserError, match=r"^--top_k: this is a run of bert, which writes no text"):
        decoding_keys({"experiment": "bert"}, {"top_k": "1"})


def test_a_flag_of_the_command_is_suggested_before_those_of_others():
    assert launch.why_unknown("--scores", "predict").endswith("did you mean --with_scores?")
    assert launch.why_unknown("--scores", "scaling").endswith("did you mean --score?")
    assert launch.why_unknown("--temperatur=1", "train").endswith("did you mean --temperature?")


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--learning_rate=1", "did you mean --config.optimizer.learning_rate=1?"),
        ("--lr=1", "--config.optimizer.learning_rate=1?"),
        ("--batch_size=4", "did you mean --config.train.batch_size=4 or "),
        ("--steps=4", "coordinates, twin and verify take it; the key is --config.train.steps"),
        ("--hepl", "did you mean --help?"),
        ("--config.learning_rate=3", "did you mean --config.optimizer.learning_rate=3?"),
        ("--config.model.frobnicate=3", "unknown key; --config=FILE --help=all lists them"),
        ("--mode=eval", "--mode: 'eval'; did you mean 'evaluate'?"),
    ],
)
def test_what_is_misspelt_is_answered_without_jax(flag, said):
    with pytest.raises(UserError) as raised:
        launch.parse(["--config=configs/lm.py", flag])
    assert said in str(raised.value)
    run = f"launch.main(['--config=configs/lm.py', {flag!r}])"
    code = f"import launch, sys; {run}; sys.exit('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=runs.ROOT, stderr=subprocess.DEVNULL)
    assert done.returncode == 0


def test_help_does_not_import_what_only_a_run_needs():
    unread = {"grain", "orbax", "tensorstore", "matplotlib", "tensorflow_datasets", "sacrebleu"}
    code = f"""import atexit, launch, sys
atexit.register(lambda: print(sorted({unread} & sys.modules.keys()), file=sys.stderr))
launch.main(["--config=configs/lm.py", "--help"])"""
    done = subprocess.run([sys.executable, "-c", code], cwd=runs.ROOT, capture_output=True, text=True)
    assert done.stderr.endswith("[]\n")


def test_a_key_of_a_users_own_config_file_is_left_to_it(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("")
    overrides = [("model.mine", "3")]
    assert launch.parse([f"--config={file}", "--config.model.mine=3"])[1] == overrides
    assert launch.parse(["--config=configs/lm.py", "--include=x.py", "--config.model.mine=3"])[1] == overrides
