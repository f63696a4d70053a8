"""A document of a packed row has the states that it has alone, whatever the other documents are: every mixer,
position encoding, attention pattern, kernel and mixture of experts, in training and evaluation."""

import contextlib
import itertools

import jax
import numpy as np
import pytest

from tests.parameters import random_params
from transformer.errors import UserError
from transformer.layers.attention.kernels import KERNELS
from transformer.layers.attention.patterns import PATTERNS
from transformer.layers.attention.positions import POSITIONS
from transformer.layers.feed_forward import FEED_FORWARDS
from transformer.layers.mixers import MIXERS
from transformer.layers.normalization import NORMS
from transformer.models.decoder import DecoderConfig
from transformer.models.encoder import EncoderConfig, TextEncoder
from transformer.training import parallel

SIZES = {"d_model": 16, "num_layers": 2, "num_heads": 4, "d_ff": 24, "max_length": 32}
VOCAB, LENGTH = 23, 24
LENGTHS = (7, 10, 4)
"""Tokens of the documents of a row; the rest of it is padding."""

KERNELS_HERE = [name for name in KERNELS if name not in ("cudnn", "splash")]
"""The others are those of one platform, where they are compared with the reference."""

EXPERTS = {"num_experts": 4, "use_bias": True}
VARIANTS = (
    {"pattern": "window", "pattern_size": 3, "kernel": "blockwise"},
    {"mixer": "linear", **EXPERTS, "capacity_factor": 0.5},
    *({"mixer": each, "position": "none"} for each in MIXERS),
    *({"kernel": kernel, "pattern": pattern, "pattern_size": 3, "position": position}
      for (kernel, pattern), position
      in zip(itertools.product(KERNELS_HERE, PATTERNS), itertools.cycle(POSITIONS), strict=False)),
    *({"feed_forward": each, "norm": norm, "norm_placement": placement}
      for each, norm, placement
      in zip(FEED_FORWARDS, itertools.cycle(NORMS), itertools.cycle(("post", "sandwich")), strict=False)),
    *({**EXPERTS, "experts_per_token": k, "capacity_factor": factor}
      for k, factor in itertools.product((1, 2), (0.0, 0.3, 0.5, 1.25))),
    {**EXPERTS, "capacity_factor": 0.5, "scan_layers": True, "remat": "full"},
    {"pattern": "blocks", "pattern_size": 2, "pattern_draws": "each"},
    {"sinks": True, "soft_cap": 2.0, "qk_norm": True, "num_kv_heads": 2},
    {"skips": True, "parallel_sublayers": True},
    {"layers": ("state", "window"),
     "layer_kinds": {"state": {"mixer": "linear"}, "window": {"pattern": "window", "pattern_size": 2}}},
)  # fmt: skip


def packed(documents):
    """Tokens, segments and positions of a row of the documents."""
    lengths = [*map(len, documents), LENGTH - sum(map(len, documents))]
    numbers = [*range(1, len(lengths)), 0]
    tokens = np.concatenate([*documents, np.zeros(lengths[-1])])
    places = np.concatenate([np.arange(n) for n in lengths])
    return tuple(np.int32(each)[None] for each in (tokens, np.repeat(numbers, lengths), places))


def reader(rng, causal, keys):
    """A function of documents that returns the states of each, (2, t, d), in training and in evaluation."""
    config = DecoderConfig if causal else EncoderConfig
    model = (DecoderConfig.build if causal else TextEncoder)(config(**SIZES | keys), VOCAB)
    params = random_params(rng, model, np.zeros((1, 1), np.int32))

    @jax.jit
    def states(tokens, segments, positions):
        row = {"segments_bt": segments, "positions_bt": positions}
        options = {"method": "hidden" if causal else None}
        each = [model.apply({"params": params}, tokens, train=t, **row, **options)[0] for t in (True, False)]
        return jax.numpy.stack(each).astype("float32")

    def read(*documents):
        return np.split(states(*packed(documents)), np.cumsum([*map(len, documents)]), axis=1)[:-1]

    return read


def divided(keys):
    """Two devices for the sequence where the kernel is that of several."""
    if keys.get("kernel") != "ring":
        return contextlib.nullcontext()
    mesh = parallel.make_mesh(parallel.MeshConfig(data=1, context=2), jax.devices()[:2])
    return parallel.placed(mesh, parallel.DEFAULT)


@contextlib.contextmanager
def skipped_where_refused():
    """Skips a pattern or a direction that a kernel does not have."""
    try:
        yield
    except UserError as refused:
        if "does not support these inputs" not in str(refused):
            raise
        pytest.skip(str(refused))


@pytest.mark.thorough(but=2)
@pytest.mark.parametrize(
    ("causal", "dtype"), [(True, "float32"), (True, "bfloat16"), (False, "float32")], ids=str
)
@pytest.mark.parametrize("keys", VARIANTS, ids=lambda keys: "-".join(map(str, keys.values())))
def test_a_document_has_its_own_states_in_any_row(rng, keys, causal, dtype):
    """To the last bit beside other documents of the same lengths, where every sum has the same terms."""
    first, own, last = (rng.integers(0, VOCAB, n) for n in LENGTHS)
    read = reader(rng, causal, keys | {"dtype": dtype})
    with divided(keys), skipped_where_refused():
        states, same = read(first, own, last)[1], read((first + 1) % VOCAB, own, last[::-1])[1]
        np.testing.assert_array_equal(states, same)
        for before in ((), (first[:2],), (first[:1],) * 3):
            moved = read(*before, own, last)[len(before)]
            error = np.abs(moved - states).max() / max(1, np.abs(states).max())
            assert error < (2e-5 if dtype == "float32" else 0.1)
