"""--mode=twin: the losses of a plain loop of PyTorch beside ours, and the configs that it refuses."""

import re

import pytest

import launch
from commands import twin

pytest.importorskip("torch")
pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("in_root")

DROPOUTS = {"model.dropout": 0, "model.embedding_dropout": 0, "model.attention_dropout": 0}
GPT2 = ("configs/papers/gpt2.py:tiny", {"model.dtype": "float32", "optimizer.learning_rate": 1e-3} | DROPOUTS)
BERT = (
    "configs/bert.py:tiny",
    {
        **{"model.position": "learned", "model.norm_placement": "post", "model.embedding_norm": True},
        **{"model.feed_forward": "gelu_exact", "model.head_activation": "gelu_exact"},
        **{"data.next_sentence": False, "optimizer.name": "adamw", "optimizer.learning_rate": 1e-3},
    },
)
MARIAN = (
    "configs/papers/vaswani_base.py:tiny",
    {
        **{"model.position": "sinusoidal_halves", "model.norm_epsilon": 1e-5, "model.output_bias": True},
        **{"model.attention_bias": True, "model.feed_forward": "silu", "loss.label_smoothing": 0},
        "optimizer.name": "adamw",
        **{"optimizer.learning_rate": 1e-3, "optimizer.clip_norm": 1, "optimizer.weight_decay": 0.1},
    }
    | DROPOUTS,
)


def given(config: str, keys: dict, steps: int) -> list[str]:
    keys = {"train.steps": 200, "optimizer.warmup_steps": 10} | keys
    flags = [f"--config.{key}={value}" for key, value in keys.items()]
    return ["--mode=twin", f"--config={config}", f"--steps={steps}", *flags]


@pytest.mark.thorough
def test_how_logits_are_kept_in_memory_is_free(capfd):
    config, keys = GPT2
    assert launch.main(given(config, keys | {"loss.vocab_parts": 2, "loss.chunk_size": 8}, 2)) == 0
    assert "largest difference in 2 steps" in capfd.readouterr().out


def test_a_loss_that_is_no_number_once_is_the_largest_difference(monkeypatch, capfd):
    pairs = [(1.0, 1.0), (float("nan"), 1.0), (2.0, 2.0)]
    monkeypatch.setattr(twin, "losses", lambda *_: iter(pairs))
    assert launch.main(given(*GPT2, len(pairs))) == 1
    assert "largest difference in 3 steps: nan, at step 2: more than 0.0001" in capfd.readouterr().out


@pytest.mark.thorough
@pytest.mark.parametrize(("peer", "run"), [("gpt2", GPT2), ("bert", BERT), ("marian", MARIAN)])
def test_both_learn_alike(peer, run, capfd):
    assert launch.main([*given(*run, 20), f"--peer={peer}"]) == 0
    said = capfd.readouterr().out
    assert re.search(r"^largest difference in 20 steps: \d\.\de-\d\d, at step \d+$", said, re.M)
    first, *_, last = [float(line.split()[1]) for line in said.splitlines()[1:-1]]
    assert last < first - 0.1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model.dropout": 0.1}, "config.model.dropout: 0.1; --mode=twin expects 0"),
        ({"optimizer.name": "adam"}, "config.optimizer.name: 'adam'; --mode=twin expects 'adamw'"),
        ({"model.position": "alibi"}, "model.position: 'alibi'"),
    ],
)
def test_what_has_no_twin_is_refused(changes, said, capfd):
    config, keys = GPT2
    assert launch.main([*given(config, keys | changes, 1), "--peer=gpt2"]) == 2
    assert said in capfd.readouterr().err


def test_a_run_of_pairs_has_no_twin(capfd):
    keys = {"model.feed_forward": "swiglu", "model.dropout": 0, "model.embedding_dropout": 0}
    keys |= {"model.attention_dropout": 0, "model.dtype": "float32", "optimizer.name": "adamw"}
    assert launch.main(given("configs/summarization_decoder.py:tiny", keys, 1)) == 2
    expected = "config.experiment: 'text_to_text'; --mode=twin expects 'language_modeling'"
    assert expected in capfd.readouterr().err
