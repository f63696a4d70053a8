"""Training and loading from a notebook, with the process settings of `launch.py`."""

import contextlib
import copy
import functools
import io
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments.evaluation.text_vectors import Embedder
from transformer import runtime
from transformer.config import from_values, to_values
from transformer.errors import UserError, suggest
from transformer.evaluation.attention_weights import token_names
from transformer.evaluation.embeddings import word_vectors
from transformer.layers.attention.kernels import KERNELS
from transformer.layers.attention.patterns import PATTERNS
from transformer.layers.attention.positions import POSITIONS
from transformer.layers.feed_forward import FEED_FORWARDS
from transformer.layers.mixers import MIXERS
from transformer.layers.normalization import NORMS
from transformer.run_folder import RunFolder
from transformer.training.experiment import Params
from transformer.training.hooks import Hook
from transformer.training.losses import LOSSES
from transformer.training.run import Run
from transformer.visualization.attention_maps import draw_attention, draw_beside
from transformer.visualization.embedding_map import draw_map
from transformer.visualization.report import Series, read_metrics
from transformer.visualization.run_curves import draw_curves
from workdir import opening, session


@functools.cache
def settle() -> None:
    """Sets the compilation cache and malloc, once; call it before JAX computes anything."""
    runtime.keep_programs()
    runtime.keep_memory()


_FAMILIES: tuple[Mapping[str, Any], ...] = (
    MIXERS,
    KERNELS,
    POSITIONS,
    PATTERNS,
    NORMS,
    FEED_FORWARDS,
    LOSSES,
)
_seen: dict[tuple[int, str], Any] = {}


def _forget_replaced() -> None:
    """Forgets JAX's compiled programs where a cell has put a new member in place of one of the same name:
    JAX finds a program by the config, which has only the name, and would run the old one."""
    now = {(i, name): member for i, family in enumerate(_FAMILIES) for name, member in family.items()}
    if any(_seen.get(key, member) is not member for key, member in now.items()):
        jax.clear_caches()
    _seen.update(now)


def _check_text(text: Any, call: str) -> None:
    """Raises `UserError` for what is not one text."""
    if not isinstance(text, str):
        raise UserError(f"{call}: {type(text).__name__}; expected one text, call it for each of several")


def train(
    config: Mapping[str, Any] | str,
    workdir: str | os.PathLike,
    hooks: Sequence[Hook] = (),
    quiet: bool = False,
) -> tuple[Run, Params]:
    """Trains in a folder, or resumes there, as `launch.py` does; returns the run and its parameters as
    `load`.

    `config` is a `ConfigDict` from `get_config` of a config file, possibly with changed keys, or a file name.
    `hooks` are your own callbacks (see CONTRIBUTING.md). Interrupting the kernel saves a checkpoint; the same
    call resumes. With `quiet` nothing is printed but errors.

    Raises:
      UserError: where `launch.py` prints an error.
    """
    settle()
    _forget_replaced()
    with contextlib.ExitStack() as stack:
        if quiet:
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        session.train(os.fspath(workdir), config=config, hooks=hooks)
    return load(workdir)


def load(workdir: str | os.PathLike) -> tuple[Run, Params]:
    """The run in a folder and its trained parameters; `run.experiment` has the model.

    Raises:
      UserError: the folder has no run, or the run has no checkpoint.
    """
    settle()
    _forget_replaced()
    return opening.load(workdir)


def evaluate(run: Run, params: Params, split: str = "validation") -> dict[str, float]:
    """The results of all evaluators of a split, {"eval/loss": ...}, as --mode=evaluate prints them."""
    _forget_replaced()
    return run.evaluate(params, split)


def complete(run: Run, params: Params, prompt: str, seed: int = 0, **sample: Any) -> str:
    """A continuation of a prompt by a language model, without the prompt; keys of `sample` may differ from
    those of the run.

        complete(run, params, "def ", temperature=0.5, max_new_tokens=100)

    Raises:
      UserError: the run does not continue texts, or has no such key or value; not a text.
    """
    _check_text(prompt, "complete")
    _forget_replaced()
    experiment: Any = copy.copy(run.experiment)
    if not experiment.continues:
        raise UserError(f"complete: a run of {run.config.experiment} does not continue texts")
    values = to_values(run.config)
    values["sample"] |= sample | {"num_samples": 1}
    experiment.config = from_values(type(run.config), values)
    return next(experiment.predict(params, [prompt], seed))[0]  # type: ignore[attr-defined]


def logits(run: Run, params: Params, text: str) -> tuple[list[str], np.ndarray]:
    """The start token and the tokens of a text, and the logits (t, v) of the token after each, in float32,
    for the tokens of the tokenizer: without the padding of `model.vocab_multiple`.

    Raises:
      UserError: the run does not continue texts, or the text has more than `model.max_length` tokens.
    """
    _check_text(text, "logits")
    experiment: Any = run.experiment
    if not experiment.continues:
        raise UserError(f"logits: a run of {run.config.experiment} does not continue texts")
    tokenizer = experiment.data.tokenizer
    tokens = [tokenizer.bos_id, *tokenizer.encode(text)]
    if len(tokens) > (most := experiment.config.model.max_length):
        raise UserError(f"logits: {len(tokens)} tokens; the model reads {most} (model.max_length)")
    logits_btv = experiment.model.apply({"params": params}, np.array([tokens]))
    names = token_names(tokenizer, tokens, {tokenizer.bos_id: "start"})
    return names, np.asarray(logits_btv[0, :, : tokenizer.vocab_size], np.float32)


def embed(run: Run, params: Params, texts: Sequence[str], **options: Any) -> np.ndarray:
    """Vectors (n, d) of texts, or with `images=True` of the images in these files, as --mode=embed writes
    them; `options` are `pooling`, `normalize` and `layer` of `Embedder`.

        embed(run, params, ["how to sort a list"], pooling="mean") @ embed(run, params, functions).T

    Raises:
      UserError: the run reads no such inputs, an option has an unknown value; one text in place of several.
    """
    if isinstance(texts, str):
        raise UserError("embed: str; expected a list of texts")
    _forget_replaced()
    embedder = Embedder(run.experiment, **options)
    with run.placed():
        vectors_nd = embedder(params, texts)
    if embedder.truncated:
        run.experiment.note("cut", f"{embedder.truncated:,} texts are longer than the model reads: truncated")
    return vectors_nd


class Picture:
    """A PNG, which a notebook shows where it is the last value of a cell."""

    def __init__(self, draw: Callable[..., None], *arguments: Any) -> None:
        """The picture that `draw(*arguments, path)` draws."""
        with tempfile.TemporaryDirectory() as folder:
            draw(*arguments, Path(folder) / "picture.png")
            self.png = (Path(folder) / "picture.png").read_bytes()

    def _repr_png_(self) -> bytes:
        return self.png


def metrics(workdir: str | os.PathLike) -> Series:
    """All that a run has logged: {"train/loss": (steps, values), ...}. Raises as `read_metrics`."""
    folder = RunFolder(workdir)
    folder.vet()
    return read_metrics(folder.metrics)


def samples(workdir: str | os.PathLike) -> dict[int, str]:
    """The samples of a run by the step at which they were drawn. Raises `UserError` where there is no run."""
    folder = RunFolder(workdir)
    folder.vet()
    if not folder.config.is_file():
        raise UserError(f"{folder.path}: it has no run; expected the folder of one")
    files = sorted(folder.samples.glob("*.txt"))
    return {int(path.stem): path.read_text(encoding="utf-8") for path in files}


def curves(workdirs: Mapping[str, str | os.PathLike], metric: str = "train/loss") -> Picture:
    """The curves of a metric of runs, {label: folder}, in one plot. Raises `UserError` if a run lacks it."""
    series_by_name = {name: metrics(path) for name, path in workdirs.items()}
    for name, series in series_by_name.items():
        if metric not in series:
            raise UserError(f"{metric!r}: not measured in {workdirs[name]}; {suggest(metric, series)}")
    return Picture(draw_curves, [(name, [series[metric]]) for name, series in series_by_name.items()], metric)


def attention_maps(run: Run, params: Params, text: str, layer: int = -1) -> Picture:
    """The attention weights of all heads of a layer (-1: the last) over a text, or in a text-to-text model of
    its answer over the text."""
    options = {} if layer == -1 else {"layer": layer}
    maps = run.experiment.attention(params, text, **options)  # type: ignore[attr-defined]
    return Picture(draw_attention, *maps)


def attention_beside(runs: Mapping[str, tuple[Run, Params]], text: str) -> Picture:
    """The attention weights of several models, {name: (run, params)}, over the same text, one map above the
    other: the mean over the heads of the last layer, for the answer that each model gives."""
    maps_by_name = {name: run.experiment.attention(params, text) for name, (run, params) in runs.items()}  # type: ignore[attr-defined]
    return Picture(draw_beside, maps_by_name)


def word_map(run: Run, params: Params, words: Sequence[str]) -> Picture:
    """The embeddings of words on their first two principal components."""
    vectors = word_vectors(params, run.experiment.data.tokenizer)  # type: ignore[attr-defined]
    return Picture(draw_map, [vectors[word] for word in words], words)
