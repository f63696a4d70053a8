"""Generative question answering, text to text: the source is a question and a text that has the answer, the
target is the answer. By default about functions of Python's standard library ("Which exception does f
raise?").

    python launch.py --config=configs/question_answering.py
    python launch.py --config=configs/question_answering.py --workdir=runs/mine \\
        --config.data.source=jsonl:questions.jsonl  # {"question": ..., "context": ..., "answer": ...}

Cost: 6 min 52 s on 2 cores of an AMD EPYC (AVX-512), 2026-11-22; 5.5 GB of memory.
Result: ROUGE-1 55.6, ROUGE-2 13.1, ROUGE-L 55.1 on 200 validation questions.
"""

from ml_collections import ConfigDict

from configs import base, summarization


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version for smoke tests."""
    config = summarization.get_config()
    config.data.source = "function_questions"
    config.data.source_field = "question,context"
    config.data.target_field = "answer"
    config.data.split_by = "context"
    config.data.source_length = 512
    return base.choose(config, preset, {"tiny": base.TINY_PAIRS})
