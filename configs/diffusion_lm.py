"""A masked diffusion language model of the source of Python's standard library, the text of configs/lm.py.

    python launch.py --config=configs/diffusion_lm.py
    python launch.py --workdir=runs/diffusion_lm --mode=predict --prompt="class [MASK*4]:"

Cost: 34 min on 2 cores of an AMD EPYC (AVX2) beside much other work, 2026-11-29.
Result: at most 2.089 bits per byte of validation text, after as many steps as configs/lm.py needs for 1.44
(gzip -9: 1.94). Filled in by `sample.order=surest` a continuation of this model is line breaks.
"""

from ml_collections import ConfigDict

from configs import base, lm


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version for smoke tests."""
    config = base.defaults("diffusion_lm")
    config.model.d_model = 192
    config.model.d_ff = 768
    config.optimizer.warmup_steps = 20
    config.train.steps = 600
    config.train.batch_size = 8
    config.train.checkpoint_every = 200
    config.train.sample_every = 200
    config.sample.prompt = "def fib("
    return base.choose(config, preset, {"tiny": lm.TINY})
