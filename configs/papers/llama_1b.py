"""Llama 3.2, 1 billion parameters, trained on English Wikipedia; otherwise as llama_8b.py.

    python launch.py --config=configs/papers/llama_1b.py

Differences: the released model was pruned from the one of 8 billion and distilled, for sequences of 128K
tokens (with another scaling of rotary positions); this is its shape from scratch.

Cost: not measured here.
Result: not measured here.
"""

from ml_collections import ConfigDict

from configs import base
from configs.papers import llama_8b


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version for smoke tests."""
    config = llama_8b.get_config()
    config.model.update(d_model=2048, num_layers=16, d_ff=8192, tie_embeddings=True)
    return base.choose(config, preset, {"tiny": llama_8b.TINY_LLAMA})
