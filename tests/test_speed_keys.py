"""What is measured does not depend on how fast it is to be: the same checkpoint with other batches,
microbatches, kernels, loops and devices."""

import json
from itertools import chain

import pytest

import launch
from experiments import EXPERIMENTS
from experiments.evaluation.evaluators import EVALUATORS, OF_MORE
from tests import runs
from tests.faults.compositions import CONFIGS, flags, has
from workdir.opening import read_config, reopen_run

ROWS = {"evaluate.batch_size": 8, "train.evaluate_batches": 2}
"""The measured rows: the first ones, as many as these batches have."""

OTHERS = {
    "other batches": {
        "evaluate.batch_size": 4,
        "train.evaluate_batches": 4,
        "parallel.microbatches": 2,
        "model.kernel": "reference",
        "model.scan_layers": True,
        "model.remat": "full",
        "loss.chunk_size": 8,
        "generate.batch_size": 3,
        "data.workers": 0,
    },
    "rows divided": {
        "evaluate.batch_size": 16,
        "train.evaluate_batches": 1,
        "model.kernel": "blockwise",
        "parallel.mesh.data": 2,
        "parallel.mesh.fsdp": 2,
    },
    "heads divided": {"loss.vocab_parts": 2, "parallel.mesh.tensor": 2},
    "sequences divided": {"parallel.mesh.context": 2},
}

QUESTIONS = [
    {"question": "def f(x):", "choices": [" return x", "\n    return x", " pass"], "answer": 1},
    {"question": "import", "choices": [" os", " sys.path"], "answer": 0},
]

FILES = {
    "choices": QUESTIONS,
    "similarity": [{"first": f"a {i}", "second": f"b {i * i}", "score": i % 4} for i in range(9)],
    "zero_shot": [{"text": f"line {i}", "label": ("even", "odd")[i % 2]} for i in range(9)],
}
"""Evaluator of a file -> the records of one."""

STUDIES = {
    "studies/in_context_regression/in_context_regression": {"model.num_heads": 2},
    "studies/search/functions": {"model.num_heads": 2},
    "studies/search/digits": {"model.num_heads": 2},
    "studies/rl/grpo_problems": {},
    "studies/rl/distillation": {},
    "diffusion_lm": {"model.num_heads": 2},
    "electra": {"model.num_heads": 2, "generator.share": 1.0},
}
"""Configs of experiments that no other config has, with keys that `OTHERS` need."""

ALSO = {
    "lm": ("compressors", "positions", "choices"),
    "studies/induction_heads/induction_heads": ("induction",),
    "studies/search/functions": ("similarity", "zero_shot"),
    "studies/rl/supervised_problems": ("answers",),
}
"""Config -> members of `EVALUATORS`; together all of them."""


@pytest.mark.thorough
@pytest.mark.usefixtures("in_root")
@pytest.mark.parametrize("name", sorted({*CONFIGS, *STUDIES, *ALSO}, key=lambda name: (name != "lm", name)))
def test_the_same_checkpoint_measures_the_same(name, tmp_path, capsys):
    values = read_config(f"configs/{name}.py:tiny")
    more = {"train.batch_size": 8, "train.steps": 2, "generate.examples": 5} | ROWS
    more |= STUDIES.get(name, {})
    others = OTHERS
    if name == "transformer_xl":  # its batches have rows of all parts of the text, so it reads the whole
        more |= {"train.evaluate_batches": 0, "data.source": runs.write_corpus(tmp_path / "corpus", 12)}
        others = {key: keys | {"train.evaluate_batches": 0} for key, keys in OTHERS.items()}
    if name in ALSO:
        for also, records in FILES.items():
            (tmp_path / also).write_text("".join(json.dumps(record) + "\n" for record in records))
        given = {also: f"{also}:{tmp_path / also}" for also in FILES} | {"answers": "answers:numeric"}
        assert given.keys() == OF_MORE.keys()
        more["evaluate.also"] = ",".join(given.get(also, also) for also in ALSO[name])
    began = flags({key: value for key, value in more.items() if has(values, key)}, {})
    assert launch.main([f"--config=configs/{name}.py:tiny", f"--workdir={tmp_path}/run", *began]) == 0, (
        capsys.readouterr().err
    )

    def measured(keys):
        run = reopen_run(tmp_path / "run", [(key, str(x)) for key, x in keys.items() if has(values, key)])
        return run.evaluate(run.restore_params())

    expected = measured({})
    assert all(any(key.startswith(f"{also}/") for key in expected) for also in ALSO.get(name, ()))
    assert expected
    for each, keys in others.items():
        found = measured(keys)
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-5, nan_ok=True), each


@pytest.mark.usefixtures("in_root")
def test_every_experiment_and_evaluator_is_asked():
    configs = (read_config(f"configs/{name}.py:tiny") for name in {*CONFIGS, *STUDIES, *ALSO})
    assert {config["experiment"] for config in configs} == {*EXPERIMENTS}
    assert {*chain(*ALSO.values())} == {*EVALUATORS}
