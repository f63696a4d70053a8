"""A baseline for text classifiers: logistic regression on word unigrams and bigrams.

    python -m benchmarks.bag_of_words --source=tsv:train.tsv --validation_source=tsv:dev.tsv
    python -m benchmarks.bag_of_words --source=tsv:train.tsv --validation_source=tsv:dev.tsv \\
        --sequence_length=512 --too_long=head_tail --vocab_size=8192

Unigrams and bigrams with sublinear tf-idf weights of scikit-learn. The regularisation is chosen by 5-fold
cross-validation on the training texts. With --sequence_length it sees what a model with these `data` keys
reads of a text, by default the whole text.
"""

import argparse
import time

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegressionCV
from sklearn.metrics import f1_score
from sklearn.pipeline import make_pipeline

from transformer.data.encoders.labelled_text import LabelledData, LabelledDataConfig
from transformer.data.text.long_texts import excerpt

KEYS = ("source", "validation_source", "text_field", "label_field", "vocab_size")
"""Keys of `data` that are flags, besides `sequence_length` and `too_long`."""


def read(data: LabelledData, text: str) -> str:
    """The pieces of a text that are read by a model of these data, a line each."""
    ids, spans = data.tokenizer.encode_with_spans(text)
    (kept,) = excerpt([np.arange(len(ids))], data.config.sequence_length - 2, data.config.too_long)
    runs = np.split(kept, np.flatnonzero(np.diff(kept) > 1) + 1)
    return "\n".join(text[spans[run[0]][0] : spans[run[-1]][1]] for run in runs if len(run))


def main() -> None:
    """Prints accuracy and macro F1 on the validation texts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in KEYS:
        default = getattr(LabelledDataConfig, name)
        parser.add_argument(f"--{name}", type=type(default), default=default)
    parser.add_argument("--too_long", choices=("cut", "head_tail"), default="cut")
    parser.add_argument("--sequence_length", type=int, default=0, help="0: whole texts")
    flags = vars(parser.parse_args())
    length = flags.pop("sequence_length")
    whole = {"tokenizer": "bytes", "vocab_size": LabelledDataConfig.vocab_size}
    data = LabelledData(LabelledDataConfig(**flags | ({"sequence_length": length} if length else whole)))
    (texts, labels), (others, truth) = (
        zip(
            *((read(data, text) if length else text, label) for (text,), label in data.texts(split)),
            strict=True,
        )
        for split in ("train", "validation")
    )
    start = time.perf_counter()
    words = TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True)
    regression = LogisticRegressionCV(Cs=[0.3, 1, 3, 10, 30], max_iter=1000, scoring="accuracy")
    model = make_pipeline(words, regression).fit(texts, labels)
    predicted = model.predict(others)
    accuracy = (predicted == list(truth)).mean()
    f1 = f1_score(truth, predicted, average="macro")
    print(f"accuracy {accuracy:.2%}, macro F1 {f1:.4f} of {len(truth):,} texts")
    seconds = time.perf_counter() - start
    print(f"after {len(texts):,} texts with {len(words.vocabulary_):,} features, in {seconds:.0f} s")


if __name__ == "__main__":
    main()
