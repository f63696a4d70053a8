"""Characters of Shakespeare (Tiny Shakespeare) with the sizes of nanoGPT's two recipes.

The text is data/tinyshakespeare/input.txt in github.com/karpathy/char-rnn. Put it into data/tinyshakespeare
and split it as nanoGPT does, the first 90 % and the last 10 %:

    cd data/tinyshakespeare && head -c 1003854 input.txt > train.txt
    tail -c +1003855 input.txt > validation.txt && cd ../..
    python launch.py --config=configs/studies/shakespeare/shakespeare.py
    python launch.py --config=configs/studies/shakespeare/shakespeare.py:large

The first is nanoGPT's run for CPUs: 4 layers, d_model 128, context 64, 2,000 steps of 12 rows (1.54 million
characters), no dropout. Its README says 1.88 nats per character of validation text, estimated on random
windows; here each character is predicted once, in windows that follow one another. Same size, with rotary
positions, RMSNorm and Muon, the defaults of this repository. One alternative (SwiGLU, larger embeddings) was
tried, on held-out training text; the validation text was evaluated once.

`large` has the size of its run for GPUs (6 layers, d_model 384, context 256, 5,000 steps of 64 rows, dropout
0.2), for which its README says 1.4697, the best of all evaluations. Here it was run on 11.5 million
characters in place of 82 million, and its whole length was not:

    python launch.py --config=configs/studies/shakespeare/shakespeare.py:large --config.train.batch_size=16 \\
        --config.train.steps=2800 --config.train.evaluate_every=200 --config.train.checkpoint_every=200 \\
        --config.model.dtype=bfloat16

Cost: 9 min 5 s on 2 cores of an AMD EPYC (AVX-512) shared with other work (3 min 47 s of processor
    time), 2026-11-23; 0.8 GB of memory. `large` by the command above: 112 min on 2 cores of an AMD EPYC
    (AVX-512, bfloat16), 2026-11-26; 1.2 GB of memory for a step, 6.1 GB for the process.
Result: 1.561 nats per character (796,160 parameters, seed 0). `large` by the command above: 1.422
    (10,647,552 parameters, seed 0), the best of 14 evaluations, at step 2,400; 1.425 at the end. With 1,200
    steps in float32 1.501.
"""

from ml_collections import ConfigDict

from configs import base, lm


def get_config(preset: str = "") -> ConfigDict:
    """The run, its `large` version, or the `tiny` one for smoke tests."""
    config = base.defaults("language_modeling")
    config.model.d_model = 128
    config.model.d_ff = 512
    config.model.max_length = 64
    config.model.vocab_multiple = 1
    config.data.source = "text:data/tinyshakespeare/train.txt"
    config.data.validation_source = "text:data/tinyshakespeare/validation.txt"
    config.data.tokenizer = "characters"
    config.data.sequence_length = 64
    config.train.steps = 2000
    config.train.batch_size = 12
    config.train.evaluate_every = 500
    config.evaluate.batch_size = 64
    config.sample.prompt = "ROMEO:"
    return base.choose(config, preset, {"large": LARGE, "tiny": TINY})


LARGE = {
    "model": {
        "d_model": 384,
        "num_layers": 6,
        "num_heads": 6,
        "d_ff": 1536,
        "max_length": 256,
        "dropout": 0.2,
        "embedding_dropout": 0.2,
        "attention_dropout": 0.2,
    },
    "data": {"sequence_length": 256},
    "train": {
        "steps": 5000,
        "batch_size": 64,
        "evaluate_every": 250,
        "keep_best": "eval/loss",
        "checkpoint_every": 250,
    },
}

TINY = lm.TINY | {
    "data": {"source": "stdlib", "validation_source": "", "tokenizer": "bytes", "sequence_length": 32}
}
