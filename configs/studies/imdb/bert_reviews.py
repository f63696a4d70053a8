"""Pre-training of a small BERT, masked language modelling only, on film reviews and articles, for the task of
`imdb.py`. The first commands make files with one text per line: the reviews of IMDB's training file
(`imdb.py`) and the sentences of SST-2's (`sst2.py`) without labels, and the paragraphs of WikiText-2.

    mkdir -p data/reviews
    tail -n +2 data/imdb/train.tsv | cut -f4 > data/reviews/imdb.txt
    tail -n +2 data/sst2/train.tsv | cut -f1 > data/reviews/sst2.txt
    grep -vE '^ *$|^ = ' wiki.train.tokens | sed 's/^ //; s/ $//' > data/reviews/wikitext2.txt
    python launch.py --config=configs/studies/imdb/bert_reviews.py

Cost: 76 min on 2 cores of an AMD EPYC (AVX-512), 2026-11-25, with other work on them for half of the time.
Result: loss 3.249 on held-out texts (perplexity 25.8) with a quarter of the tokens masked. In float32 and
with cased tokens it was 3.114 of other tokens, in 51 min (2026-11-22). `bert_imdb.py` continues from it.
"""

from ml_collections import ConfigDict

from configs import base, bert


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version for smoke tests."""
    config = base.defaults("masked_lm")
    config.model.norm = "layer"
    config.model.dtype = "bfloat16"
    config.data.source = "text:data/reviews/*.txt"
    config.data.document = "line"
    config.data.lowercase = True
    config.data.vocab_size = 8192
    config.data.sequence_length = 256
    config.data.next_sentence = False
    config.data.masked_share = 0.25
    config.optimizer.final_fraction = 0.1
    config.train.steps = 3000
    config.train.batch_size = 32
    config.train.evaluate_every = 500
    config.train.checkpoint_every = 500
    config.train.sample_every = 500
    return base.choose(config, preset, {"tiny": TINY})


TINY = bert.TINY | {
    "data": {
        "source": "stdlib",
        "document": "file",
        "tokenizer": "bytes",
        "vocab_size": 4096,
        "sequence_length": 64,
    }
}
"""Keys for smoke tests, on data that need no download."""
