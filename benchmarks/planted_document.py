"""Finding a document that does not belong: by a spike of the loss, then by the loss of each.

    python -m benchmarks.planted_document [--trials=100]

In each trial a small language model is trained on 60 documents of random words, one of which is random bytes.
The step whose loss exceeds the median of its neighbours the most is looked up with `--mode=batch`; of the
documents that it read, the one with the highest loss of `--mode=evaluate --per_document` is called.
"""

import argparse
import contextlib
import io
import json
import random
import string
import tempfile
from pathlib import Path

import numpy as np

NEIGHBOURS = 4
"""Steps before and after, with whose median loss a step is compared."""


def write_documents(folder: Path, rng: random.Random, documents: int = 60) -> Path:
    """Writes documents of 40 words out of 200; returns the one that is of random letters."""
    words = ["".join(rng.choices(string.ascii_lowercase, k=rng.randrange(3, 9))) for _ in range(200)]
    folder.mkdir(parents=True)
    for number in range(documents):
        text = " ".join(rng.choices(words, k=40))
        (folder / f"{number}.txt").write_text(text, encoding="ascii")
    planted = folder / f"{rng.randrange(documents)}.txt"
    planted.write_text("".join(rng.choices(string.printable, k=250)), encoding="ascii")
    return planted


def spike(losses: np.ndarray) -> int:
    """The step, from 1, whose loss exceeds the median of its neighbours the most, in the second half."""
    begin = len(losses) // 2
    around = [
        np.median(losses[max(0, i - NEIGHBOURS) : i + NEIGHBOURS + 1]) for i in range(begin, len(losses))
    ]
    return begin + int(np.argmax(losses[begin:] - around)) + 1


def found(folder: Path, seed: int) -> bool:
    """Whether the planted document is found in one trial."""
    import launch

    planted = write_documents(folder / "documents", random.Random(seed))
    source = f"text:{folder}/documents/*.txt"
    keys = {"data.source": source, "data.validation_source": source, "data.tokenizer": "bytes"}
    keys |= {"data.overlap": 1.0}  # all of the validation data, in which documents are looked for
    keys |= {"data.sequence_length": 64, "model.d_model": 32, "model.d_ff": 64, "seed": seed}
    keys |= {"train.steps": 120, "train.batch_size": 8, "train.log_every": 1, "train.sample_every": 0}
    keys |= {"train.evaluate_every": 120, "train.checkpoint_every": 120, "optimizer.warmup_steps": 10}
    run, losses = f"--workdir={folder}/run", f"{folder}/losses.jsonl"
    overrides = [f"--config.{key}={value}" for key, value in keys.items()]
    commands = [
        ["--config=configs/lm.py:tiny", run, *overrides],
        [run, "--mode=evaluate", "--split=train", f"--per_document={losses}"],
    ]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert not any(launch.main(command) for command in commands)
        step = spike(
            np.array(
                [
                    line["train/loss"]
                    for line in read(folder / "run" / "metrics.jsonl")
                    if "train/loss" in line
                ]
            )
        )
        assert not launch.main([run, "--mode=batch", f"--step={step}", f"--output={folder}/batch.jsonl"])
    loss = {line["place"]: line["loss"] for line in read(Path(losses))}
    there = {line["place"] for line in read(folder / "batch.jsonl")}
    return max(there & loss.keys(), key=lambda place: loss[place]) == f"{planted}:1"


def read(path: Path) -> list[dict]:
    """The objects of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=100)
    flags = parser.parse_args()
    count = 0
    for trial in range(flags.trials):
        with tempfile.TemporaryDirectory() as folder:
            count += found(Path(folder), trial)
        print(f"{count} of {trial + 1} found", flush=True)


if __name__ == "__main__":
    main()
