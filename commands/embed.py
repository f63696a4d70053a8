"""Writes vectors of texts or images: those of an embedder, or what any encoder or language model computes.

python launch.py --workdir=runs/search --mode=embed --input=texts.txt --output=vectors.npy
python launch.py --workdir=runs/search --mode=embed --prompt="how to sort a list"
python launch.py --workdir=runs/bert --mode=embed --input=a.jsonl --field=body --pooling=first --layer=8
"""

import argparse
import io
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commands import add_step, add_texts, text
from transformer.errors import UserError
from transformer.safe_files import replace
from workdir.outputs import check_file

if TYPE_CHECKING:
    from workdir.opening import Overrides

TOGETHER = 1024
"""The number of inputs that are read before vectors are written."""

NUMPY = ".npy"


def add_flags(parser: Any) -> None:
    """The flags of this command."""
    add_texts(parser, "a text, or the path of an image")
    add_step(parser)
    meaning = "a field of the records of --input, a .jsonl file or a source KIND:WHERE, in place of its lines"
    parser.add_argument("--field", type=text, default="", help=meaning)
    parser.add_argument("--images", action="store_true", help="inputs are paths of images, of two towers")
    meaning = "mean, first, last or max over tokens (that of the model, or mean)"
    parser.add_argument("--pooling", type=text, default="", help=meaning)
    meaning = "whether vectors get the length 1 (as in training, or true)"
    parser.add_argument("--normalize", choices=("true", "false"), help=meaning)
    meaning = "pool the output of the first N blocks; 0: the embeddings (all of them, and the norm behind)"
    parser.add_argument("--layer", type=int, metavar="N", help=meaning)


def run(flags: argparse.Namespace, overrides: "Overrides") -> int:
    """Writes a vector for --prompt, or for each line of --input, or each field of its records. The file
    --output has an array (n, d) of float32 if it ends in .npy, otherwise, as standard output, JSON lines
    {"text": ..., "vector": [...]}."""
    import jax
    import numpy as np

    from commands.support.answer_files import writing
    from commands.support.texts import check_files
    from experiments.evaluation.text_vectors import Embedder
    from workdir.opening import load

    check_files(flags.prompt, flags.input, flags.output)
    check_file("--output", flags.output)
    inputs = _inputs(flags)
    inputs = itertools.chain([next(inputs)], inputs)  # raises on an empty file before a model is loaded
    run, params = load(flags.workdir, overrides, flags.step)
    normalize = None if flags.normalize is None else flags.normalize == "true"
    options = {"pooling": flags.pooling, "normalize": normalize, "layer": flags.layer}
    try:
        embedder = Embedder(run.experiment, images=flags.images, **options)
    except UserError as error:
        raise UserError(f"--mode=embed: {error}") from None
    parts = iter(lambda: [*itertools.islice(inputs, TOGETHER)], [])
    with run.placed():
        vectors = ((part, embedder(params, part)) for part in parts)
        if Path(flags.output or "").suffix == NUMPY:
            _save(Path(flags.output), np.concatenate([vectors_nd for _, vectors_nd in vectors]))
        else:
            with writing(flags.output) as out:
                for part, vectors_nd in vectors:
                    for line, vector_d in zip(part, vectors_nd.tolist(), strict=True):
                        out.write([json.dumps({"text": line, "vector": vector_d}, ensure_ascii=False)])
    if embedder.truncated and jax.process_index() == 0:
        print(f"{embedder.truncated:,} texts are longer than the model reads: truncated", file=sys.stderr)
    return 0


def _inputs(flags: argparse.Namespace) -> Iterator[str]:
    """The texts, or paths; at least one."""
    from commands.support.texts import texts_of

    if not flags.field:
        yield from texts_of(flags.prompt, flags.input)
        return
    from transformer.data.sources import open_source

    if not flags.input:
        raise UserError(f"--field: {flags.field!r} without --input; expected a .jsonl file, or KIND:WHERE")
    name = flags.input if ":" in flags.input else f"jsonl:{flags.input}"
    source = open_source(name, "test", field=flags.field, divide=False)
    if not len(source):
        raise UserError(f"--input: {flags.input} has no records")
    yield from (source.text(index) for index in range(len(source)))


def _save(path: Path, vectors_nd: Any) -> None:
    """Writes an array, which is there whole or not at all."""
    import jax
    import numpy as np

    if jax.process_index() == 0:
        file = io.BytesIO()
        np.save(file, vectors_nd)
        replace(path, file.getbuffer())
