"""Answers in words, text to text: a question and the text that has the answer are the source, the answer is
the target. Data are JSON lines {"question": ..., "context": ..., "answer": ...}, one object an answer.

    python launch.py --config=configs/question_answering.py --config.data.source=jsonl:questions.jsonl

Cost: not measured.
Result: not measured.
"""

from ml_collections import ConfigDict

from configs import base


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version, which takes seconds and learns nothing."""
    config = base.sequence_to_sequence()
    config.model.num_layers = 3
    config.model.norm = "rms"
    config.model.dropout = 0.1
    config.data.source = "jsonl:questions.jsonl"
    config.data.source_field = "question,context"
    config.data.target_field = "answer"
    config.data.vocab_size = 8000
    config.data.source_length = 512
    config.data.target_length = 64
    config.optimizer.name = "contrib.muon"
    config.optimizer.learning_rate = 0.02
    config.train.steps = 5000
    config.train.evaluate_every = 1000
    config.train.checkpoint_every = 1000
    config.generate.max_new_tokens = 32
    config.generate.metric = "rouge"
    return base.choose(config, preset, {"tiny": base.TINY_PAIRS})
