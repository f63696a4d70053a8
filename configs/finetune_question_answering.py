"""Extractive question answering: find the span of a text that answers a question, about functions of the
Python standard library or on your own data in the format of SQuAD.

    python launch.py --config=configs/finetune_question_answering.py
    python launch.py --config=configs/bert.py
    python launch.py --config=configs/finetune_question_answering.py --config.initialize_from=runs/bert
    python launch.py --workdir=runs/finetune_question_answering --mode=predict --input=questions.txt

A line of questions.txt is a question, a tab and the text, in which \\n is a line break and \\\\ a
backslash. With `initialize_from` the model and the tokenizer are the pre-trained run's; without it the
encoder below is trained from scratch. Sources are squad:GLOB
(--config.data.source=squad:train-v1.1.json with --config.data.validation_source=squad:dev-v1.1.json),
tfds:squad, parquet:GLOB, or jsonl:GLOB with one record per line, {"question": ..., "context": ...,
"answers": {"text": [...], "answer_start": [...]}}. For questions that may have no answer, as in SQuAD 2.0:
--config.answer.allow_none=true.

Cost: the first command, with its data prepared (a minute more), 15 min 38 s on one core of an AMD EPYC (AVX2)
    with other work on it (2026-11-21), 7 min 25 s of processor time.
Result: from scratch, exact match 87.6% and F1 89.4% on all 1,151 validation questions (--mode=evaluate
    --config.answer.examples=0); 84.6% and 86.6% on the first 500, which training measures. These questions
    are of seven kinds with short answers, and say little about SQuAD. A pre-trained encoder has not been
    measured.
"""

from ml_collections import ConfigDict

from configs import base

TINY = {
    "model": {"d_model": 32, "num_layers": 2, "num_heads": 2, "d_ff": 64, "max_length": 256},
    "data": {"tokenizer": "bytes"},
    "answer": {"examples": 5},
    "optimizer": {"warmup_steps": 1},
    "train": {"steps": 2, "batch_size": 8, "evaluate_every": 0, "evaluate_batches": 1},
}
"""Keys for smoke tests."""


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version for smoke tests."""
    config = base.defaults("span_extraction")
    config.model.d_model = 128
    config.model.d_ff = 512
    config.model.norm = "layer"
    config.model.dropout = 0.1
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 1e-3
    config.optimizer.final_fraction = 0.1
    config.train.steps = 400
    config.train.evaluate_every = 200
    config.train.checkpoint_every = 200
    return base.choose(config, preset, {"tiny": TINY})
