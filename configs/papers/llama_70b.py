"""Llama 3, 70 billion parameters (Llama Team 2024, table 3); otherwise as llama_8b.py.

    python launch.py --config=configs/papers/llama_70b.py

Cost: not measured here; the model card of Llama 3.1 names 7.0 million hours of NVIDIA H100.
Result: not measured here.
"""

from ml_collections import ConfigDict

from configs import base
from configs.papers import llama_8b


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version for smoke tests."""
    config = llama_8b.get_config()
    config.model.d_model = 8192
    config.model.num_layers = 80
    config.model.num_heads = 64
    config.model.d_ff = 28_672
    config.optimizer.learning_rate = 1.5e-4
    return base.choose(config, preset, {"tiny": llama_8b.TINY_LLAMA})
