"""Kinds of attention under the same training: multi-head attention with RoPE, and a preset for each other.

    python launch.py --config=configs/attention.py
    python launch.py --config=configs/attention.py:window

Cost: 0.6 to 0.9 min on 2 cores of an AMD EPYC (AVX-512), 2026-11-22; 1.3 to 2.2 GB of memory.
Result: 1.924 ± 0.030 bits per byte of validation text, 1.854 ± 0.031 with a window (three seeds, 95 %
    intervals, 2026-11-25). All presets, with the differences seed by seed: experiments/README.md.
"""

from ml_collections import ConfigDict

from configs import base, lm


def get_config(preset: str = "") -> ConfigDict:
    """The run, one of `KINDS`, or `tiny`, for smoke tests; presets combine, `window,tiny`."""
    config = base.defaults("language_modeling")
    config.model.d_model = 128
    config.model.d_ff = 512
    config.data.sequence_length = 512
    config.optimizer.warmup_steps = 20
    config.train.steps = 200
    config.train.batch_size = 4
    config.sample.prompt = "def fib("
    return base.choose(config, preset, KINDS | {"tiny": lm.TINY})


KINDS: dict[str, dict] = {
    # Multi-query attention: one key/value head.
    "multi_query": {"model": {"num_kv_heads": 1}},
    # Multi-head latent attention (MLA): keys and values of all heads from one latent vector per token.
    "latent": {"model": {"mixer": "latent"}},
    # Self-attention without projections.
    "plain": {"model": {"mixer": "plain", "position": "none"}},
    # Normalised queries and keys, scores within (-20, 20), and an attention sink in each head.
    "bounded": {"model": {"qk_norm": True, "soft_cap": 20.0, "sinks": True}},
    # A sliding window: the 64 nearest keys.
    "window": {"model": {"pattern": "window", "pattern_size": 64}},
    # A dilated window: 32 keys, every fourth one.
    "dilated": {"model": {"pattern": "window", "pattern_size": 32, "pattern_extra": 4}},
    # Sliding-window layers with rotary positions; every other layer full, without positions.
    "local_and_full": {
        "model": {
            "pattern": "window",
            "pattern_size": 64,
            "layers": ["local", "full"],
            "layer_kinds": {"local": {}, "full": {"pattern": "full", "position": "none"}},
        }
    },
    # Three layers of Gated DeltaNet, then one of full attention without positions; not measured.
    "delta_and_full": {
        "model": {
            "layers": ["delta", "delta", "delta", "full"],
            "layer_kinds": {"delta": {"mixer": "gated_delta"}, "full": {"position": "none"}},
        }
    },
    # A window of 64 keys and 4 global tokens.
    "global_and_window": {"model": {"pattern": "global", "pattern_size": 64, "pattern_extra": 4}},
    # The strided pattern of the Sparse Transformer: the last 32 keys, and every 32nd before them.
    "strided": {"model": {"pattern": "strided", "pattern_size": 32}},
    # The fixed pattern of the Sparse Transformer: blocks of 32 keys, whose last 4 are summary keys for all.
    "fixed": {"model": {"pattern": "fixed", "pattern_size": 32, "pattern_extra": 4}},
    # BigBird: blocks of 32 tokens attend to their neighbours, the first block, and a random one.
    "blocks": {"model": {"pattern": "blocks", "pattern_size": 32}},
}
