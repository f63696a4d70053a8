"""Llama 3, 8 billion parameters (Llama Team 2024, table 3), trained on English Wikipedia.

    python launch.py --config=configs/papers/llama_8b.py

Parameters and optimizer state are sharded over all devices (`fsdp`); a step has 4.2 million tokens.

Differences: the paper's 15 trillion tokens were never released. The vocabulary of 128,256 tokens is trained
on the data, unless data.tokenizer names the released `tokenizer.json`. The batch keeps its size.

Cost: not measured here; the model card of Llama 3.1 names 1.46 million hours of NVIDIA H100.
Result: not measured here.
"""

from ml_collections import ConfigDict

from configs import base
from configs.papers.gpt2 import TINY


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version for smoke tests."""
    config = base.defaults("language_modeling")
    config.initialize_std = 0.02
    config.model.d_model = 4096
    config.model.num_layers = 32
    config.model.num_heads = 32
    config.model.num_kv_heads = 8
    config.model.d_ff = 14_336
    config.model.feed_forward = "swiglu"
    config.model.norm_epsilon = 1e-5
    config.model.position_base = 500_000.0
    config.model.max_length = 8192
    config.model.tie_embeddings = False
    config.model.dtype = "bfloat16"
    config.model.scan_layers = True
    config.model.remat = "full"
    config.data.source = "tfds:wiki40b/en"
    config.data.vocab_size = 128_256
    config.data.sequence_length = 8192
    config.loss.vocab_parts = 8
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 3e-4
    config.optimizer.warmup_steps = 8_000
    config.train.steps = 1_200_000
    config.train.batch_size = 512
    config.train.evaluate_every = 5_000
    config.train.evaluate_batches = 20
    config.train.checkpoint_every = 1_000
    config.train.keep_last = 3
    config.train.rollbacks = 3
    config.parallel.mesh.data = 1
    config.parallel.mesh.fsdp = -1
    return base.choose(config, preset, {"tiny": TINY_LLAMA})


TINY_LLAMA = TINY | {"model": TINY["model"] | {"num_kv_heads": 1}, "loss": {"vocab_parts": 2}}
"""Keys for smoke tests."""
