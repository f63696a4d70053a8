"""Sums of two numbers below 100, learned from the distributions of a run that trained for longer.

    python launch.py --config=configs/studies/rl/supervised_problems.py --workdir=runs/teacher \\
        --config.train.steps=3000
    python launch.py --config=configs/studies/rl/distillation.py --config.teacher=runs/teacher

Without a teacher the answers themselves are learned; --config.rollout.share=1 learns on drawn answers.

Cost: 14 to 17 s of processor time on one of 2 cores of an AMD EPYC shared with other work, 2026-11-29.
Result: 37 %, 64 % and 3 % of held-out sums right with seeds 0, 1, 2; 55 %, 5 % and 21 % without a teacher:
no difference found (docs/study_notes.md).
"""

from ml_collections import ConfigDict

from configs import base
from configs.studies.rl import supervised_problems


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version for smoke tests."""
    config = base.defaults("distillation")
    config.update(KEYS)
    config.rollout.max_new_tokens = 4
    return base.choose(config, preset, {"tiny": supervised_problems.TINY})


KEYS: dict[str, dict] = {
    "model": {"d_model": 64, "num_layers": 2, "d_ff": 256, "max_length": 40},
    "data": {
        "source": "problems:addition,2",
        "messages_field": "prompt,answer",
        "tokenizer": "characters",
        "sequence_length": 40,
    },
    "optimizer": {"name": "adamw", "learning_rate": 3e-3, "schedule": "constant", "warmup_steps": 20},
    "train": {"steps": 500, "batch_size": 32},
    "evaluate": {"also": "answers:exact"},
    "sample": {"prompt": "47+85", "temperature": 0.0, "max_new_tokens": 4},
}
"""Those of supervised_problems.py, with which it is compared."""
