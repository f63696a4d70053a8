"""Answers in words, text to text: a question and the text that has the answer are the source, the answer is
the target; by default of functions of Python's standard library ("Which exception does f raise?").

    python launch.py --config=configs/question_answering.py
    python launch.py --config=configs/question_answering.py --workdir=runs/mine \\
        --config.data.source=jsonl:questions.jsonl  # {"question": ..., "context": ..., "answer": ...}

Cost: not yet measured.
Result: not yet measured.
"""

from ml_collections import ConfigDict

from configs import base, summarization


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version, which takes seconds and learns nothing."""
    config = summarization.get_config()
    config.data.source = "function_questions"
    config.data.source_field = "question,context"
    config.data.target_field = "answer"
    config.data.source_length = 512
    return base.choose(config, preset, {"tiny": base.TINY_PAIRS})
