"""A baseline for text classifiers: logistic regression on word unigrams and bigrams.

    python -m benchmarks.bag_of_words --source=tsv:train.tsv --validation_source=tsv:dev.tsv

Unigrams and bigrams with sublinear tf-idf weights of scikit-learn. The regularisation is chosen by 5-fold
cross-validation on the training texts.
"""

import argparse
import time

from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegressionCV
from sklearn.metrics import f1_score
from sklearn.pipeline import make_pipeline

from transformer.data.labelled_text import LabelledData, LabelledDataConfig


def main() -> None:
    """Prints accuracy and macro F1 on the validation texts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("source", "validation_source", "text_field", "label_field"):
        parser.add_argument(f"--{name}", default=getattr(LabelledDataConfig, name))
    data = LabelledData(LabelledDataConfig(**vars(parser.parse_args()), tokenizer="bytes"))
    (texts, labels), (others, truth) = (
        zip(*(("\n".join(parts), label) for parts, label in data.texts(split)), strict=True)
        for split in ("train", "validation")
    )
    start = time.perf_counter()
    words = TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True)
    regression = LogisticRegressionCV(Cs=[0.3, 1, 3, 10, 30], max_iter=1000)
    model = make_pipeline(words, regression).fit(texts, labels)
    found = model.predict(others)
    accuracy = (found == list(truth)).mean()
    f1 = f1_score(truth, found, average="macro")
    print(f"accuracy {accuracy:.2%}, macro F1 {f1:.4f} of {len(truth):,} texts")
    seconds = time.perf_counter() - start
    print(f"after {len(texts):,} texts with {len(words.vocabulary_):,} features, in {seconds:.0f} s")


if __name__ == "__main__":
    main()
