"""GPT-2 in its four sizes (Radford et al. 2019, table 2), trained on English Wikipedia.

    python launch.py --config=configs/papers/gpt2.py
    python launch.py --config=configs/papers/gpt2.py:xl

Presets: `small` (124 million parameters, the default), `medium` (355), `large` (774), `xl` (1,558).
Differences: WebText was never released. The vocabulary of 50,257 tokens is trained on the data, unless
data.tokenizer names the released one. Learning rates are those of GPT-3 (Brown et al. 2020, table 2.1).

Cost: not measured here.
Result: not measured here.
"""

from ml_collections import ConfigDict

from configs import base, lm

SIZES = {
    "small": (768, 12, 12, 6e-4),
    "medium": (1024, 24, 16, 3e-4),
    "large": (1280, 36, 20, 2.5e-4),
    "xl": (1600, 48, 25, 2e-4),
}
"""Preset -> width, layers, heads, learning rate."""


def shape(size: str) -> dict[str, dict]:
    """The keys of a size."""
    width, layers, heads, rate = SIZES[size]
    model = {"d_model": width, "num_layers": layers, "num_heads": heads, "d_ff": 4 * width}
    return {"model": model, "optimizer": {"learning_rate": rate}}


TINY: dict[str, dict] = lm.TINY | {
    "data": {"source": "stdlib", "tokenizer": "bytes", "vocab_size": 4096, "sequence_length": 32},
}
"""Keys for smoke tests, on data that need no download."""


def get_config(preset: str = "") -> ConfigDict:
    """The run of a size, or its `tiny` version for smoke tests."""
    config = base.defaults("language_modeling")
    config.initialize_std = 0.02
    config.model.norm = "layer"
    config.model.norm_epsilon = 1e-5
    config.model.position = "learned"
    config.model.max_length = 1024
    config.model.use_bias = True
    config.model.embedding_dropout = 0.1
    config.model.attention_dropout = 0.1
    config.model.dropout = 0.1
    config.model.dtype = "bfloat16"
    config.model.scan_layers = True
    config.data.source = "tfds:wiki40b/en"
    config.data.vocab_size = 50_257
    config.data.sequence_length = 1024
    config.optimizer.name = "adamw"
    config.optimizer.warmup_steps = 700
    config.train.steps = 100_000
    config.train.batch_size = 512
    config.train.evaluate_every = 2_000
    config.train.evaluate_batches = 100
    config.train.checkpoint_every = 1_000
    return base.choose(
        config, f"small,{preset}".rstrip(","), {size: shape(size) for size in SIZES} | {"tiny": TINY}
    )
