"""The rehearsal of the measurement of a GPU, on any machine."""

import json
import subprocess
import sys

import pytest

from benchmarks.gpu_cases import CASES, random_batch
from tests import runs


@pytest.mark.thorough
def test_a_rehearsal_measures_each_contestant_and_names_what_the_time_left_out(tmp_path):
    out = tmp_path / "figures.jsonl"
    command = [sys.executable, "-m", "benchmarks.gpu_quarter_hour", "--tiny", f"--out={out}"]
    cases = ["device", "packed", "attention"]
    done = subprocess.run([*command, "--cases", *cases], cwd=runs.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, *records = [json.loads(line) for line in out.read_text().splitlines()]
    assert "jax" in first["machine"] and not [record for record in records if "error" in record]
    measured = {(record["case"], record["who"]) for record in records if record.get("seconds", 0) > 0}
    expected = {(name, who) for name in cases for who in CASES[name].contestants}
    assert measured == expected
    again = subprocess.run([*command, "--cases", *cases], cwd=runs.ROOT, capture_output=True, text=True)
    assert again.returncode == 2 and "exists; name a new file" in again.stderr
    late = [*command[:-1], f"--out={tmp_path / 'late.jsonl'}", "--minutes=0", "--cases", *cases]
    done = subprocess.run(late, cwd=runs.ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "packed: the time is over" in done.stdout


def test_random_batches_have_documents_whose_positions_count_from_zero():
    from jax import ShapeDtypeStruct

    shapes = {name: ShapeDtypeStruct((3, 50), "int32") for name in ("tokens", "segments", "positions")}
    batch = random_batch(shapes, 9, 10)
    assert batch["tokens"].min() >= 4 and batch["tokens"].max() < 9
    for segments, positions in zip(batch["segments"], batch["positions"], strict=True):
        for number in {*segments.tolist()}:
            inside = positions[segments == number]
            assert inside.tolist() == [*range(len(inside))]
    whole = random_batch(shapes, 9, 0)
    assert (whole["segments"] == 1).all() and (whole["positions"][0] == range(50)).all()


def test_the_peer_attends_within_the_same_documents():
    """The kernel for a CPU; that of a GPU has the same starts."""
    torch = pytest.importorskip("torch")
    import jax
    import jax.numpy as jnp

    from benchmarks.torch_attention import document_starts, of_documents
    from transformer.layers.attention.kernels import choose
    from transformer.layers.attention.masks import Mask

    segments = random_batch({"segments": jax.ShapeDtypeStruct((2, 60), jnp.int32)}, 9, 10)["segments"]
    starts = torch.tensor(document_starts(2, 60, 10))
    assert len(starts) > 6 and 60 in starts
    x = torch.randn(3, 120, 2, 8)
    ours = [jnp.asarray(part.numpy()).reshape(2, 60, 2, 8) for part in x]
    mask = Mask.self_attention(jnp.asarray(segments), None, causal=True)
    expected = choose("reference", *ours, mask=mask)(*ours, mask=mask).reshape(120, 2, 8)
    out = of_documents(*x, starts, int(starts.diff().max()))
    torch.testing.assert_close(out, torch.tensor(expected.tolist()), atol=1e-5, rtol=1e-5)
