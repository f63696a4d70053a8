"""Fine-tuning of a pre-trained encoder for text classification, with that run's model and tokenizer.

    python launch.py --config=configs/bert.py
    python launch.py --config=configs/finetune_classification.py --config.initialize_from=runs/bert

For LoRA of the query and value projections and the head alone add --config.model.lora_rank=8
--config.optimizer.train_only=lora,head. Without `initialize_from` it is trained from scratch.

Cost: 9 min on 2 cores (AVX-512); 3.0 GB of memory.
Result: 92.9 % of 295 validation functions, macro F1 0.888; configs/classification.py, from scratch, has
93.9 %. Where labels are few pre-training pays: configs/studies/imdb/finetune_imdb.py.
"""

from ml_collections import ConfigDict

from configs import base, classification


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version for smoke tests."""
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
