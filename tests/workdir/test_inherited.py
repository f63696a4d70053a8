"""The architecture of the run that `initialize_from` names is that of every command that reads a config."""

import argparse
import json

import pytest

import launch
from commands.compare import Arm, of_a_step
from commands.sweeps.settings import make_job
from tests import runs
from transformer.errors import UserError

pytestmark = pytest.mark.usefixtures("in_root")

TINY = "configs/lm.py:tiny"


@pytest.fixture(scope="module")
def origin(tmp_path_factory):
    """A run with another architecture than the config's."""
    folder = tmp_path_factory.mktemp("origin")
    keys = ("--config.model.d_model=48", "--config.model.num_layers=3", "--config.model.max_length=3000")
    assert launch.main(runs.tiny(runs.write_corpus(folder), folder / "run", *keys)) == 0
    return folder / "run"


@pytest.mark.thorough
def test_plan(origin, tmp_path):
    out = tmp_path / "plan.json"
    keys = [f"--config.initialize_from={origin}", "--config.data.source=stdlib"]
    assert launch.main(["--mode=plan", f"--config={TINY}", *keys, f"--output={out}"]) == 0
    found = json.loads(out.read_text())["parameters"]
    assert launch.main(["--mode=plan", f"--workdir={origin}", f"--output={out}"]) == 0
    assert found == json.loads(out.read_text())["parameters"]
    chat = ["--config=configs/finetune_chat.py", "--config.train.batch_size=2"]  # of another tokenizer
    assert launch.main(["--mode=plan", *chat, keys[0], f"--output={out}"]) == 0
    assert found == json.loads(out.read_text())["parameters"]


@pytest.mark.parametrize(("kind", "said"), [("", "does not exist"), ("hf:", "there is no such folder")])
def test_an_origin_that_is_missing(tmp_path, capfd, kind, said):
    missing = f"--config.initialize_from={kind}{tmp_path}/none"
    assert launch.main(["--mode=plan", f"--config={TINY}", missing]) == 2
    error = capfd.readouterr().err
    assert error.startswith(f"error: config.initialize_from: {tmp_path}/none") and said in error


@pytest.mark.thorough
def test_flops_of_a_step(origin):
    def flops(*keys):
        arm = Arm("a", TINY, [("data.source", "stdlib"), *keys])
        return of_a_step(argparse.Namespace(basis="flops"), arm)

    own = [("model.d_model", "48"), ("model.num_layers", "3"), ("model.max_length", "3000")]
    inherited = ("initialize_from", str(origin))
    assert flops(inherited) == flops(*own) > 2 * flops()
    assert flops(inherited, ("model.num_layers", "1")) < 0.6 * flops(inherited)


@pytest.mark.thorough
def test_runs_of_a_sweep_and_of_a_comparison(origin, tmp_path):
    keys = [("initialize_from", str(origin)), ("train.batch_size", "8")]
    long = {"data.sequence_length": 2500}
    job = make_job(argparse.Namespace(config=TINY, workdir=tmp_path), keys, "a", long)
    assert job.values["model"]["max_length"] == 3000
    assert Arm("a", TINY, keys).values(data__sequence_length=2500)["model"]["d_model"] == 48
    with pytest.raises(UserError, match=r"2500 is longer than model\.max_length"):
        Arm("a", TINY, keys[1:]).values(data__sequence_length=2500)


@pytest.mark.thorough
def test_config(origin, capsys):
    given = f"--config.initialize_from={origin}"
    assert launch.main(["--mode=config", f"--config={TINY}", given]) == 0
    assert "model.num_layers = 3 " in capsys.readouterr().out
    assert launch.main(["--mode=config", f"--config={TINY}", given, "--config.model.num_layers=2"]) == 0
    assert "model.num_layers = 2 " in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [
    ["--mode=sweep", "--sweep", "model.lora_alpha=4,8"],
    ["--mode=compare", "--a=model.lora_alpha=4", "--b=model.lora_alpha=8"],
])  # fmt: skip
def test_a_key_without_effect_is_refused_before_any_run_begins(tmp_path, capfd, arguments):
    assert launch.main([*arguments, f"--config={TINY}", f"--workdir={tmp_path}/runs"]) == 2
    assert "config.model.lora_alpha: 4.0 does nothing with lora_rank 0" in capfd.readouterr().err
    assert not (tmp_path / "runs").exists()
