"""Where the tokens of a text look: the weights of self-attention, from a notebook and as pictures."""

import functools
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
from flax import linen as nn
from numpy.typing import ArrayLike

from experiments.objective import Objective
from transformer.data.tokenizers import Tokenizer
from transformer.models.watching import attention_weights
from transformer.training.experiment import Params

PADDED = 64
"""Tokens: of what the lengths of texts are multiples, so that few are compiled."""

PICTURED = 16
"""Tokens: as many of a text are drawn at the most."""

Look = tuple[np.ndarray, list[str], list[str]]
"""Weights (h, t, s), the tokens that look and those that are looked at."""


class Attending(Objective):
    """A model whose self-attention can be looked at; a subclass runs its blocks, and has `attention`."""

    @abstractmethod
    def read(self, model: Any, tokens_bt: Any, segments_bt: Any, types_bt: Any) -> Any:
        """Runs the blocks."""

    def weights(
        self, params: Params, tokens: ArrayLike, types: ArrayLike | None = None, layer: int = -1
    ) -> np.ndarray:
        """The weights (h, t, t) with which tokens see one another in a layer, from 0 or back from -1."""
        count, most = len(np.asarray(tokens)), self.config.model.max_length
        width = min(-(-count // PADDED) * PADDED, most)

        def padded(values: ArrayLike) -> np.ndarray:
            return np.pad(np.asarray(values, np.int32), (0, width - count))[None]

        of_types = np.zeros(count, np.int32) if types is None else types
        arrays = padded(tokens), padded(np.ones(count, np.int32)), padded(of_types)
        return np.asarray(self._watch(params, *arrays, layer=layer), np.float32)[:, :count, :count]

    @functools.cached_property
    def _watch(self) -> Callable[..., jax.Array]:
        @functools.partial(jax.jit, static_argnames="layer")
        def watch(params: Params, tokens_bt: Any, segments_bt: Any, types_bt: Any, layer: int) -> jax.Array:
            def read(model: nn.Module) -> Any:
                return self.read(model, tokens_bt, segments_bt, types_bt)

            return attention_weights(self.model, params, read, layer)[0]

        return watch


class AttendingDecoder(Attending):
    """A decoder."""

    def read(self, model: Any, tokens_bt: Any, segments_bt: Any, types_bt: Any) -> Any:
        """The blocks of `Decoder`."""
        return model.hidden(tokens_bt, segments_bt=segments_bt)


class AttendingEncoder(Attending):
    """An encoder of framed texts."""

    def read(self, model: Any, tokens_bt: Any, segments_bt: Any, types_bt: Any) -> Any:
        """The blocks of `TextEncoder`."""
        return model.encoder(tokens_bt, segments_bt=segments_bt, types_bt=types_bt)

    def attention(self, params: Params, text: str, layer: int = -1) -> Look:
        """With which weights (h, t, t) the tokens of a text see one another in a layer (from 0, or back from
        -1), and the tokens, twice; without what does not fit into a row. A text is what `predict` takes."""
        tokens, types = self.framed(text)
        markers = self.data.markers
        special = {markers.cls: "[CLS]", markers.sep: "[SEP]", getattr(markers, "mask", -1): "[MASK]"}
        shown = names(self.data.tokenizer, tokens, special)
        return self.weights(params, tokens, types, layer), shown, shown

    def framed(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """The tokens that the model reads of a text, and their types."""
        return self.data.frame(text)


def pictured(look: Look) -> Look:
    """The part of the first `PICTURED` tokens, which is what a picture has room for."""
    weights_hts, by, seen = look
    return weights_hts[:, :PICTURED, :PICTURED], by[:PICTURED], seen[:PICTURED]


def names(tokenizer: Tokenizer, tokens: Iterable[int], special: dict[int, str]) -> list[str]:
    """What each token is to be called: its text, or its name where it has none."""
    return [special.get(int(i)) or tokenizer.decode([i]) or tokenizer.name(int(i)) or "·" for i in tokens]
