"""The coordinate check as a command: what it prints, and the layer that it names."""

import json
import re

import numpy as np
import pytest
from scipy.special import stdtrit

import launch
from commands.coordinates import print_table
from transformer.evaluation.statistics.width_powers import Coordinates
from transformer.models.transforms.mup import widened
from transformer.training.optim import parametrization
from transformer.training.parallel import path_names
from workdir.opening import read_config

pytestmark = pytest.mark.usefixtures("in_root")

FLAGS = ["--mode=coordinates", "--config=configs/lm.py:tiny", "--widths=32,64,128", "--steps=2"]
FLAGS += ["--seeds=4", "--bound=0.4"]
KEYS = {"model.d_model": 32, "model.d_ff": 64, "model.num_heads": 4, "model.head_dim": 8}
KEYS |= {"optimizer.name": "adamw", "optimizer.learning_rate": 0.004, "model.num_layers": 1}
MUP = {"model.parametrization": "mup", "model.base_width": 32}


def check(tmp_path, capsys, keys, *flags):
    given = [f"--config.{key}={value}" for key, value in keys.items()]
    code = launch.main([*FLAGS, *given, f"--workdir={tmp_path}", *flags])
    out, err = capsys.readouterr()
    return code, out.splitlines(), err


@pytest.mark.thorough
def test_a_wrong_multiplier_is_named(tmp_path, capsys, monkeypatch):
    right = parametrization.scales

    def wrong(path, *args):
        found = right(path, *args)
        planted = path_names(path)[-2:] == ("up", "kernel")
        return parametrization.Scales(found.initial, 1 / found.step) if planted else found

    code, out, _ = check(tmp_path, capsys, KEYS | MUP)
    assert (code, out[-1]) == (0, "no layer drifts: none grows, or falls to nothing, by a power beyond 0.4")
    assert (tmp_path / "coordinates.png").is_file()
    assert not any(line.endswith("drifts") for line in out)
    monkeypatch.setattr(parametrization, "scales", wrong)
    code, out, _ = check(tmp_path, capsys, KEYS | MUP)
    assert code == 1
    assert out[-1].startswith("blocks/0/feed_forward/up drifts: its change grows as width^")


@pytest.mark.thorough
def test_a_rate_at_which_all_diverges_is_no_good_one(tmp_path, capsys):
    keys = KEYS | MUP | {"optimizer.learning_rate": 1e38, "model.norm": "none"}
    code, out, _ = check(tmp_path, capsys, keys, "--widths=32,64", "--steps=1", "--seeds=2")
    assert code == 1
    # Which layer is the first depends on how the processor rounds.
    assert re.fullmatch(r"\S+ drifts: its change is not finite; after it \d+ more", out[-1])
    assert (tmp_path / "coordinates.png").is_file()


@pytest.mark.thorough
def test_the_standard_parametrisation_drifts(tmp_path, capsys):
    code, out, _ = check(tmp_path, capsys, KEYS)
    assert code == 1 and " drifts: its " in out[-1]
    assert out[0].split() == [
        "power",
        "of",
        "the",
        "width",
        "size",
        "at",
        "0",
        "at",
        "2",
        "change",
        "1",
        "change",
        "2",
    ]


@pytest.mark.parametrize(
    ("seeds", "said"),
    [(3, "± half of the 95 % interval over 3 seeds"), (1, "of one seed no interval is known: --seeds=3")],
)
def test_powers_are_printed_with_the_half_of_their_interval(capsys, seeds, said):
    powers = [0.5 + 0.1 * np.arange(seeds)] * 2
    size = np.array([1.0, 2, 4])[:, None, None] ** np.transpose(powers)
    print_table(Coordinates([64, 128, 256], {"layer": size}, {"layer": size}), set())
    _, line, last = capsys.readouterr().out.splitlines()
    assert last == said
    numbers = re.findall(r"(\d\.\d\d)(?: ±(\d\.\d\d))?", line)
    assert len(numbers) == 3
    margin = f"{stdtrit(2, 0.975) * 0.1 / 3**0.5:.2f}" if seeds > 1 else ""
    assert {part[1] for part in numbers} == {margin}
    assert all(abs(float(part[0]) - (0.6 if seeds > 1 else 0.5)) < 0.02 for part in numbers)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--widths=64"], "--widths: '64'; expected two or more widths, 64,128,256"),
        (["--widths=64,x"], "--widths: '64,x'; expected two or more"),
        (["--steps=0"], "--steps: 0; expected 1 or more"),
        (["--seeds=0"], "--seeds: 0; expected 1 or more"),
        (["--bound=0"], "--bound: 0.0; expected more than 0"),
        (["--output=drift.xyz"], "--output: drift.xyz; expected a name that ends in .png, .svg, .pdf"),
        (["--output=no/such/drift.png"], "--output: there is no folder 'no/such'"),
        (["--widths=24,32", "--config.model.num_heads=2"], "num_heads: 2 at d_model 32 is 1.5 at 24"),
        (["--config=configs/word_embedding.py:tiny"], "--mode=coordinates: a model of word_embedding has no"),
    ],
)
def test_impossible_flags_are_named(tmp_path, capsys, flags, said):
    keys = {} if "word_embedding" in flags[0] else KEYS
    code, _, err = check(tmp_path, capsys, keys, *flags)
    assert code == 2 and said in err and len(err.splitlines()) == 1


def test_the_rest_of_a_model_grows_with_its_width():
    model = json.loads(json.dumps(read_config("configs/lm.py")["model"])) | {"d_model": 64, "d_ff": 256}
    assert {**widened(model, 256), "layer_kinds": None} == {
        **{"d_model": 256, "d_ff": 1024, "latent_dim": 0, "head_dim": 0, "value_dim": 0, "layer_kinds": None}
    }
    more = model | {"head_dim": 16, "num_kv_heads": 2, "layer_kinds": {"a": {"d_ff": 128, "norm": "layer"}}}
    found = widened(more, 128)
    assert (found["num_heads"], found["num_kv_heads"]) == (2 * model["num_heads"], 4)
    assert found["layer_kinds"] == {"a": {"d_ff": 256, "norm": "layer"}} and "head_dim" not in found
    assert widened(more | {"base_head_dim": 8}, 128)["head_dim"] == 32
