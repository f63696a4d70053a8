"""Parity of an encoder-decoder with one of transformers, over sources of different lengths."""

import contextlib
import functools
import io
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.interop import parity
from transformer.decoding.beam import beam_search
from transformer.interop import tensor_rules as table
from transformer.interop.hub_folder import family_for
from transformer.interop.tensors import open_tensors, write_tensors
from transformer.interop.transfer import load, outputs

LENGTHS = (7, 1, 4, 9, 2, 9)
"""Of the sources in a batch."""

ROWS, WIDTH = len(LENGTHS), max(LENGTHS)
VALID = (np.arange(WIDTH) < np.array(LENGTHS)[:, None]).astype(np.int32)


class Pairs(parity.Imported):
    """A folder of transformers, read here; its logits are those of targets for fixed, padded sources."""

    @functools.cached_property
    def source(self) -> np.ndarray:
        rng = np.random.default_rng(7)
        return np.where(VALID, rng.integers(3, self.vocab_size, VALID.shape), 0).astype(np.int32)

    @functools.cached_property
    def logits(self) -> Any:
        def apply(params: Any, tokens_bt: jax.Array) -> jax.Array:
            segments = {"source_segments_bs": VALID, "segments_bt": jnp.ones_like(tokens_bt)}
            return self.model.apply({"params": params}, self.source, tokens_bt, **segments)

        compiled = jax.jit(apply)
        return lambda params, tokens_bt: np.asarray(compiled(params, tokens_bt)[..., : self.vocab_size])

    def targets(self, rng: np.random.Generator, length: int = 24) -> np.ndarray:
        return rng.integers(0, self.vocab_size, (ROWS, length), np.int32)

    def expected(self, theirs: Any, tokens_bt: np.ndarray) -> np.ndarray:
        import torch

        source, valid, tokens = map(torch.tensor, (self.source, VALID, tokens_bt))
        with torch.no_grad():
            found = theirs(input_ids=source, attention_mask=valid, decoder_input_ids=tokens.long())
        return found.logits.numpy()


def check_logits(imported: Pairs, theirs: Any, rng: np.random.Generator) -> None:
    tokens_bt = imported.targets(rng)
    ours, expected = imported.logits(imported.params, tokens_bt), imported.expected(theirs, tokens_bt)
    assert np.abs(expected - expected.mean(-1, keepdims=True)).max() > 0.5
    assert parity.close(ours, expected), np.abs(ours - expected).max() / np.abs(expected).max()


def check_search(
    imported: Pairs, theirs: Any, beams: int, new: int, *, length_penalty: float = 1.0, ends: bool = True
) -> None:
    """The same tokens as `generate` of transformers, greedily or by beam search with scores
    log p / length^penalty, the end counted, until no hypothesis can become better."""
    import torch

    eos = theirs.config.eos_token_id
    stepper = imported.hub.experiment.stepper(imported.params)
    assert stepper.bos_id == theirs.config.decoder_start_token_id != eos
    found = beam_search(
        stepper, imported.source, np.array(LENGTHS), beam_size=beams, max_new_tokens=new, n_best=1,
        length_penalty=length_penalty, length_offset=0.0, eos_id=eos,
    )  # fmt: skip
    tokens_bn, counts_b = np.asarray(found[0])[:, 0], np.asarray(found[1])[:, 0]
    # Its cache has as many layers as the encoder.
    options: dict[str, Any] = {"do_sample": False, "max_new_tokens": new, "use_cache": False}
    if beams > 1:
        options |= {"num_beams": beams, "length_penalty": length_penalty, "early_stopping": "never"}
    torch.set_num_threads(1)
    with torch.no_grad():
        expected_bn = theirs.generate(
            torch.tensor(imported.source), attention_mask=torch.tensor(VALID), **options
        ).numpy()[:, 1:]  # fmt: skip
    for ours_n, count, theirs_n in zip(tokens_bn, counts_b, expected_bn, strict=True):
        ended = [*theirs_n.tolist(), eos].index(eos)
        np.testing.assert_array_equal(ours_n[:count], theirs_n[:ended])
    assert len({*tokens_bn.ravel().tolist()}) > 2 and (len({*counts_b.tolist()}) > 1 or not ends)


def check_round_trip(imported: Pairs, theirs: Any, folder: Any, rng: np.random.Generator) -> None:
    """What is exported is imported again bit by bit, and transformers has its own logits back."""
    folder.mkdir()
    model, params, family = imported.hub.model, imported.params, imported.hub.folder.family
    config = family_for(imported.hub.experiment.config, family.model_type)[1]
    assert config["model_type"] == family.model_type
    places = table.places(family.rules(model), imported.shapes, imported.vocab_size)
    write_tensors(folder, outputs(places, params, np.dtype(np.float32)), 1 << 40)
    again = load(places, open_tensors(folder), imported.hub.abstract)
    for path, leaf in parity.flat(again).items():
        np.testing.assert_array_equal(leaf, parity.flat(params)[path], path)
    assert family.model(config) == family.model(imported.hub.folder.config)
    ids = {key: getattr(theirs.config, key) for key in ("pad_token_id", "decoder_start_token_id")}
    (folder / "config.json").write_text(json.dumps(config | ids | {"vocab_size": imported.vocab_size}))
    with contextlib.redirect_stderr(io.StringIO()):
        back, info = type(theirs).from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    tokens_bt = imported.targets(rng)
    expected = imported.expected(theirs, tokens_bt)
    np.testing.assert_array_equal(imported.expected(back.eval(), tokens_bt), expected)


def check_broken_tables(imported: Pairs, rng: np.random.Generator, at_least: int) -> None:
    """Every table with one wrong entry is refused, or its logits are wrong, or the biases of keys are: these
    add the same to all scores of a query, and so change nothing else."""
    from transformer.errors import UserError

    tokens_bt = imported.targets(rng)
    right, caught = imported.logits(imported.params, tokens_bt), 0
    biases = key_biases(imported.params)
    for name, rules in parity.broken_tables(imported.rules, imported.shapes):
        with contextlib.suppress(UserError):
            wrong = imported.params_by(rules)
            alike = all(np.array_equal(x, biases[path]) for path, x in key_biases(wrong).items())
            assert not alike or not parity.close(imported.logits(wrong, tokens_bt), right), name
        caught += 1
    assert caught >= at_least, caught


def key_biases(params: Any) -> dict[str, Any]:
    return {path: x for path, x in parity.flat(params).items() if path.endswith("key/bias")}
