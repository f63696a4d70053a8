"""What is measured does not depend on how fast it is to be: the same checkpoint with other batches,
microbatches, kernels, loops and devices."""

import pytest

import launch
from commands.opening import read_config, reopen_run
from tests import runs
from tests.faults.compositions import CONFIGS, flags, has

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
}


@pytest.mark.thorough(but=1)
@pytest.mark.usefixtures("in_root")
@pytest.mark.parametrize("name", sorted(CONFIGS, key=lambda name: name != "transformer_xl"))
def test_the_same_checkpoint_measures_the_same(name, tmp_path, capsys):
    values = read_config(f"configs/{name}.py:tiny")
    more = {"train.batch_size": 8, "train.steps": 2, "generate.examples": 5} | ROWS
    others = OTHERS
    if name == "transformer_xl":  # its batches have rows of all parts of the text, so it reads the whole
        more |= {"train.evaluate_batches": 0, "data.source": runs.write_corpus(tmp_path / "corpus", 12)}
        others = {key: keys | {"train.evaluate_batches": 0} for key, keys in OTHERS.items()}
    began = flags({key: value for key, value in more.items() if has(values, key)}, {})
    assert launch.main([f"--config=configs/{name}.py:tiny", f"--workdir={tmp_path}/run", *began]) == 0, (
        capsys.readouterr().err
    )

    def measured(keys):
        run = reopen_run(tmp_path / "run", [(key, str(x)) for key, x in keys.items() if has(values, key)])
        return run.evaluate(run.restore_params())

    expected = measured({})
    assert expected
    for each, keys in others.items():
        found = measured(keys)
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-5, nan_ok=True), each
