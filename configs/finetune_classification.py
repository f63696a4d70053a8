"""Fine-tuning of a pre-trained encoder to classify texts; the model and the tokenizer are the other run's.

    python launch.py --config=configs/bert.py
    python launch.py --config=configs/finetune_classification.py --config.initialize_from=runs/bert

Only the head and a low-rank correction of the queries and values (LoRA), with 0.8 % of the parameters:
--config.model.lora_rank=8 --config.optimizer.train_only=lora,head. Without `initialize_from` it trains
the same classifier from the beginning.

Cost: 8 min 49 s on 2 cores of an AMD EPYC (AVX-512), 2026-11-22, the second command, with tests of other
things beside it for a minute; 3.0 GB of memory.
Result: 92.9 % of 295 validation functions, macro F1 0.888 (87.8 % at a rate of 3e-4 in 600 steps). A smaller
model from the beginning, configs/classification.py, reaches 93.9 %.
"""

from ml_collections import ConfigDict

from configs import base, classification


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version, which takes seconds and learns nothing."""
    config = base.defaults("classification")
    config.model.norm = "layer"
    config.model.max_length = 512
    config.model.use_bias = True
    config.model.dropout = 0.1
    config.model.attention_dropout = 0.1
    config.model.head_dropout = 0.1
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 1e-3
    config.optimizer.layer_decay = 0.8
    config.optimizer.final_fraction = 0.1
    config.train.evaluate_every = 200
    return base.choose(config, preset, {"tiny": classification.TINY})
