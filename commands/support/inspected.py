"""The subject of `--mode=inspect`: the model of a run, the inputs that flags name, and its data."""

import argparse
import itertools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer.data.tokenization.special_tokens import encode_masked
from transformer.errors import UserError
from transformer.evaluation.attention_weights import read_encoder, token_names
from transformer.interpret.activations import unrolled
from transformer.interpret.instruments import BATCHES, INSTRUMENTS
from transformer.interpret.instruments.base import Reading, Subject
from transformer.models.decoder import Decoder
from transformer.models.encoder_decoder import EncoderDecoder
from transformer.models.vision import VisionTransformer, patches

LEVELS = 16
"""The tokens of patches of images: the mean of their pixels, in this many steps; and one for [CLS]."""


def subject_of(run: Any, params: Any, flags: argparse.Namespace) -> Subject:
    """The subject of a run. Raises `UserError` if the instrument cannot look into it, or it reads no such
    text."""
    experiment, kind = run.experiment, flags.instrument
    experiment.model = model = unrolled(experiment.model)
    if INSTRUMENTS[kind].decoder and not _continues(model):
        name = experiment.config.experiment
        raise UserError(f"--instrument={kind}: {name}; expected a run whose decoder continues a text")
    if isinstance(model, EncoderDecoder):
        name = experiment.config.experiment
        raise UserError(f"--instrument={kind}: {name}; expected a run of a decoder or an encoder")
    readings = {
        name: _reading(experiment, f"--{name}", prompt)
        for name in ("prompt", "against")
        if (prompt := vars(flags)[name]) is not None
    }

    def batches(split: str) -> Iterator[Any]:
        loader = experiment.train_data() if split == "train" else experiment.evaluation_loader(split)
        return map(run.put, itertools.islice(loader.iterate(0), flags.batches or BATCHES))

    return Subject(
        model,
        params,
        lambda tokens: _names(experiment, tokens),
        lambda params, batch: experiment.loss(params, batch, jax.random.key(0), False),
        batches,
        lambda batch: _tokens(experiment, batch),
        vars(flags),
        experiment.config.model.max_length,
        " " if _tokenizer(experiment) is None else "",
        **readings,
    )


def _continues(model: Any) -> bool:
    return isinstance(model, Decoder) and not isinstance(model, EncoderDecoder)


def _reading(experiment: Any, flag: str, prompt: str) -> Reading:
    """The text or the image of a flag."""
    model, special, name = experiment.model, _special(experiment), experiment.config.experiment
    if isinstance(model, VisionTransformer):
        image_1hwc, side = experiment.data.read(prompt)[None], experiment.config.model.patch_size
        rows, columns = (size // side for size in image_1hwc.shape[1:3])
        names = [f"{row},{column}" for row in range(rows) for column in range(columns)]
        names = ["[CLS]"] * (experiment.config.model.pooling == "cls") + names
        return Reading(
            lambda params: model.apply({"params": params}, image_1hwc), names, grid=(rows, columns)
        )
    if _continues(model):
        tokens_1t = _decoder_tokens(experiment, flag, prompt)
        forward = lambda params: model.apply({"params": params}, tokens_1t)  # noqa: E731
        return Reading(forward, _names(experiment, tokens_1t[0]), tokens_1t)
    if special is None:
        raise UserError(f"{flag}: {name} reads no such text; expected a run of a decoder or an encoder")
    parts = [encode_masked(_tokenizer(experiment), part, special.mask) for part in prompt.split("\t")]
    tokens_t, types_t = special.build_input([np.array(part, np.int32) for part in parts])
    _check_length(experiment, flag, len(tokens_t))
    arrays = (tokens_t[None], np.ones_like(tokens_t)[None], types_t[None])
    method = lambda bound: read_encoder(bound, *arrays)  # noqa: E731
    names = _names(experiment, tokens_t)
    return Reading(lambda params: model.apply({"params": params}, method=method), names)


def _decoder_tokens(experiment: Any, flag: str, prompt: str) -> np.ndarray:
    """The tokens (1, t) of a text, after the start token if there is one."""
    if (tokenizer := _tokenizer(experiment)) is None:
        if problem := experiment.problem(prompt):
            raise UserError(f"{flag}: {problem}")
        return np.array([[int(word) for word in prompt.split()]], np.int32)
    tokens = [tokenizer.bos_id, *tokenizer.encode(prompt)]
    _check_length(experiment, flag, len(tokens))
    return np.array([tokens], np.int32)


def _check_length(experiment: Any, flag: str, count: int) -> None:
    if count > (most := experiment.config.model.max_length):
        raise UserError(f"{flag}: {count:,} tokens; the model reads {most:,} (model.max_length)")


def _tokens(experiment: Any, batch: Any) -> tuple[np.ndarray, np.ndarray]:
    """The tokens (b, t) of a batch, and which of them are not padding. Raises `UserError` if the model reads
    several texts."""
    model = experiment.model
    if isinstance(model, VisionTransformer):
        c = model.config
        mean_bt = patches(jnp.asarray(batch["images"], jnp.float32), c.patch_size).mean(-1)
        tokens_bt = np.asarray(mean_bt * LEVELS / 256, np.int32)
        tokens_bt = np.pad(tokens_bt, ((0, 0), (int(c.pooling == "cls"), 0)), constant_values=LEVELS)
    elif "tokens" in batch:
        tokens_bt = np.asarray(batch["tokens"])
    else:
        name = experiment.config.experiment
        raise UserError(f"--instrument: the data of {name}; expected a run of a decoder or an encoder")
    if "segments" in batch:
        return tokens_bt, np.asarray(batch["segments"]) > 0
    weights_b = np.asarray(batch["weights"]).reshape(len(tokens_bt), -1).max(axis=1)
    return tokens_bt, np.broadcast_to(weights_b[:, None] > 0, tokens_bt.shape)


def _names(experiment: Any, tokens: Any) -> list[str]:
    ids = [int(token) for token in tokens]
    if (tokenizer := _tokenizer(experiment)) is None:
        return [*map(str, ids)]
    if (special := _special(experiment)) is None:
        return token_names(tokenizer, ids, {tokenizer.bos_id: "start"})
    names = {special.cls: "[CLS]", special.sep: "[SEP]", special.mask: "[MASK]"}
    return token_names(tokenizer, ids, names)


def _tokenizer(experiment: Any) -> Any:
    """The tokenizer of a run; None: its tokens are integers."""
    return vars(experiment.data).get("tokenizer")


def _special(experiment: Any) -> Any:
    """The special tokens of an encoder's texts; None: it reads none."""
    return vars(experiment.data).get("special_tokens")
