"""Vectors of texts or images by the model of any run that reads these."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from transformer.data.images.images import ImageData
from transformer.decoding.generation import fill, pad
from transformer.devices import on_host
from transformer.errors import UserError
from transformer.evaluation.terms_by_row import replicated
from transformer.layers.block import Block
from transformer.models.classifier import EmbedderConfig, TextEmbedder, pool, unit
from transformer.models.encoder import TextEncoder
from transformer.training.experiment import Params

AT_ONCE = 32
"""Batch size, in texts or images."""

POOLINGS = {"mean": "mean", "first": "cls", "last": "last", "max": "max"}
"""Name -> the function of `transformer.models.classifier.POOLINGS`."""


class Embedder:
    """(params, inputs) -> vectors (n, d), float32: what the model computes of each input, pooled.

    Inputs are texts, or with `images` (and of a model of images) paths of images. A text is read as in
    training, `[CLS] text [SEP]` or after the start token, and truncated to what the model reads; `truncated`
    counts such texts. No vector depends on the other inputs, but for rounding.

    Raises:
      UserError: the model reads no such inputs, an unknown pooling or layer.
    """

    def __init__(
        self,
        experiment: Any,
        *,
        pooling: str = "",
        normalize: bool | None = None,
        layer: int | None = None,
        images: bool = False,
    ) -> None:
        """`pooling` is one of `POOLINGS`, "" that of the model, or the mean; `normalize` says whether vectors
        get the length 1 (None: as the model does, or yes). `layer` is the number of blocks whose output is
        pooled, from 0, the embeddings (None: all of them, and the norm behind the last)."""
        self.experiment, c = experiment, experiment.config
        self.reads_text = experiment.data.special_tokens is not None or experiment.is_language_model
        reads_images = isinstance(experiment.data, ImageData)
        if not (reads_images if images else reads_images or self.reads_text):
            raise UserError(f"a run of {c.experiment} has no vectors of {'images' if images else 'texts'}")
        self.images = images or not self.reads_text
        model = experiment.image_config if self.images else c.model
        if pooling and pooling not in POOLINGS:
            raise UserError(f"pooling: {pooling!r}; expected one of {', '.join(POOLINGS)}")
        if layer is not None and not 0 <= layer <= model.num_layers:
            raise UserError(f"layer: {layer}; expected a number from 0 to {model.num_layers}, its last")
        self.truncated = 0
        self._layer, trained = layer, isinstance(c.model, EmbedderConfig)
        if layer is not None and trained and c.model.width:
            raise UserError(
                f"layer: {layer}; the map to {c.model.width} dimensions is of the last layer alone"
            )
        own = model.pooling if trained or self.images else "mean"
        self._pooling: Any = POOLINGS[pooling] if pooling else own
        self._normalize = (c.model.normalize if trained else True) if normalize is None else normalize
        self._compute = jax.jit(self._image_vectors if self.images else self._text_vectors)

    def __call__(self, params: Params, inputs: Sequence[str]) -> np.ndarray:
        """The vectors of the inputs, in their order."""
        rows = [*map(self.experiment.data.read if self.images else self._tokens, inputs)]
        order = sorted(range(len(rows)), key=lambda i: 0 if self.images else len(rows[i]))
        vectors = []
        for start in range(0, len(rows), AT_ONCE):
            some = [rows[i] for i in order[start : start + AT_ONCE]]
            filled = fill(some, AT_ONCE)
            arrays = (np.stack(filled),) if self.images else pad(filled, self._most, 0)
            vectors.append(on_host(self._compute(params, *arrays))[: len(some)])
        if not vectors:
            raise UserError("0 texts; expected at least one")
        return np.concatenate(vectors)[np.argsort(order)]

    @property
    def _most(self) -> int:
        """The most tokens of a text."""
        c = self.experiment.config
        return c.data.longest if isinstance(c.model, EmbedderConfig) else c.model.max_length

    def _tokens(self, text: str) -> np.ndarray:
        data, most = self.experiment.data, self._most
        ids = np.array(data.tokenizer.encode(text), np.int32)
        if data.special_tokens is None:
            tokens = np.concatenate([np.array([data.tokenizer.bos_id], np.int32), ids])
        else:
            tokens, _ = data.special_tokens.build_input([ids[: most - 2]])
        self.truncated += len(ids) + 1 + (data.special_tokens is not None) > most
        return tokens[:most]

    def _text_vectors(self, params: Params, tokens_bt: jax.Array, lengths_b: jax.Array) -> jax.Array:
        """(b, t) tokens of texts of these lengths -> (b, d)."""
        experiment, c = self.experiment, self.experiment.config.model
        segments_bt = (jnp.arange(tokens_bt.shape[1]) < lengths_b[:, None]).astype(jnp.int32)
        with nn.intercept_methods(first_blocks(self._layer)):
            if isinstance(c, EmbedderConfig):
                config = dataclasses.replace(c, pooling=self._pooling, normalize=False)
                embedder = TextEmbedder(config, experiment.model.vocab_size)
                return self._finished(embedder.apply({"params": params}, tokens_bt, segments_bt))
            if experiment.is_language_model:
                variables, method = {"params": params}, "hidden"
                x_btd = experiment.model.apply(variables, tokens_bt, segments_bt=segments_bt, method=method)
            else:
                encoder = TextEncoder(c, experiment.model.vocab_size)
                x_btd = encoder.apply({"params": params["encoder"]}, tokens_bt, segments_bt=segments_bt)
        return self._finished(pool(self._pooling, x_btd, segments_bt, 1)[:, 0].astype(jnp.float32))

    def _image_vectors(self, params: Params, images_bhwc: jax.Array) -> jax.Array:
        """(b, h, w, c) uint8 -> (b, d)."""
        with nn.intercept_methods(first_blocks(self._layer)):
            return self._finished(self.experiment.image_vectors(params, images_bhwc, self._pooling))

    def _finished(self, x_bd: jax.Array) -> jax.Array:
        return replicated(unit(x_bd) if self._normalize else x_bd)


def first_blocks(count: int | None) -> Callable[..., Any]:
    """A flax method interceptor with which a stack is its first blocks alone: the other blocks, and the norm
    behind the last one, hand on what they get. None: all are computed."""

    def intercept(function: Callable, args: Any, kwargs: Any, context: Any) -> Any:
        result, module = function(*args, **kwargs), context.module
        if count is None or context.method_name != "__call__":
            return result
        if isinstance(module, Block):
            return jnp.where(kwargs["mask"].layer < count, result[0], args[0]), result[1]
        return args[0] if module.name == "final_norm" else result

    return intercept
