"""Parity with a model of transformers: what every family's test asserts, on random weights made there."""

import contextlib
import dataclasses
import functools
import io
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.decoding import generation
from transformer.errors import UserError
from transformer.interop import tensor_rules as table
from transformer.interop.tensor_rules import Rule
from transformer.interop.tensors import open_tensors, write_tensors
from transformer.interop.transfer import load, outputs
from workdir.hub import Hub

RELATIVE = 1e-5
"""The largest difference of logits, relative to the largest of them; both compute in float32."""


def save(
    model: Any, folder: Path, seed: int, *, std: float = 0.25, embedding: float = 1.0, tokenizer: Any = None
) -> Path:
    """Draws every parameter of a model of transformers again, norms and biases too, and saves it with a
    tokenizer, by default of bytes. `embedding` multiplies tables, which else may outweigh the blocks."""
    import torch

    torch.set_num_threads(1)  # more only wait for each other in models as small
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:  # a table that is computed
                continue
            mean = parameter if parameter.ndim == 1 else 0  # norms are drawn around what they are initially
            factor = std * (embedding if "embed" in name else 1.0)
            parameter.copy_(mean + factor * torch.randn(parameter.shape, generator=generator))
    with contextlib.redirect_stderr(io.StringIO()):
        model.eval().save_pretrained(folder)
    (tokenizer or Tokenizer.train("bytes")).save(folder / "tokenizer.json")
    return folder


class Imported:
    """A folder of transformers, read here."""

    def __init__(self, folder: Path) -> None:
        self.hub = Hub(str(folder))
        self.model = self.hub.experiment.model
        self.vocab_size = self.model.vocab_size
        self.shapes = {path: x.shape for path, x in flat(self.hub.abstract).items()}

    @functools.cached_property
    def params(self) -> Any:
        return self.hub.read(self.hub.abstract)

    @functools.cached_property
    def rules(self) -> list[Rule]:
        return [*self.hub.folder.family.rules(self.hub.model)]

    @functools.cached_property
    def logits(self) -> Any:
        """(params, tokens) -> logits, compiled once."""
        apply = jax.jit(lambda params, tokens_bt: self.model.apply({"params": params}, tokens_bt))
        return lambda params, tokens_bt: np.asarray(apply(params, tokens_bt)[..., : self.vocab_size])

    def params_by(self, rules: Sequence[Rule]) -> Any:
        """The parameters that another table of rules gives; raises `UserError` where the check of names and
        shapes does."""
        places = table.places(rules, self.shapes, self.vocab_size)
        folder = self.hub.folder
        table.compare(folder.tensors, places, folder.family.ignored(self.hub.model), folder.path)
        found = {path: np.zeros(shape, np.float32) for path, shape in self.shapes.items()}
        for place in places.values():
            for part, path in enumerate(place.paths):
                where = found[path][place.index]
                where[...] = place.ours(folder.tensors[place.name].open(), part)
        return traverse_util.unflatten_dict(found, sep="/")


def flat(tree: Any) -> dict[str, Any]:
    return traverse_util.flatten_dict(tree, sep="/")


def close(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Whether two arrays differ by at most `RELATIVE` of the largest value."""
    return bool(np.abs(ours - theirs).max() <= RELATIVE * np.abs(theirs).max())


def their_logits(model: Any, tokens_bt: np.ndarray) -> np.ndarray:
    import torch

    model.config.use_cache = False  # which transformers cannot make for layers that are all recurrent
    with torch.no_grad():
        return model(torch.tensor(tokens_bt)).logits.numpy()


def check_logits(imported: Imported, theirs: Any, rng: np.random.Generator, length: int) -> None:
    tokens_bt = rng.integers(0, imported.vocab_size, (2, length), np.int32)
    ours = imported.logits(imported.params, tokens_bt)
    expected = their_logits(theirs, tokens_bt)
    assert np.abs(expected - expected.mean(-1, keepdims=True)).max() > 0.5  # not all logits are alike
    assert close(ours, expected), np.abs(ours - expected).max() / np.abs(expected).max()


def check_greedy(imported: Imported, theirs: Any, rng: np.random.Generator, new: int = 64) -> None:
    """Greedy generation, token for token, from prompts of different lengths in one batch."""
    lengths = (1, 5, 9)
    prompts = [rng.integers(0, imported.vocab_size, n, np.int32) for n in lengths]
    padded_bt = np.zeros((3, max(lengths)), np.int32)
    for row, prompt in zip(padded_bt, prompts, strict=True):
        row[: len(prompt)] = prompt
    stepper = imported.hub.experiment.stepper(imported.params)
    keys_b = jax.random.split(jax.random.key(0), 3)
    ours_bn, _ = generation.generate(
        stepper, jnp.asarray(padded_bt), jnp.array(lengths), keys_b, max_new_tokens=new, temperature=None
    )
    for prompt, ours_n in zip(prompts, np.asarray(ours_bn), strict=True):
        # Each token is the likeliest one after those before it, so theirs would have drawn the same.
        likeliest_t = their_logits(theirs, np.concatenate([prompt, ours_n[:-1]])[None])[0].argmax(-1)
        np.testing.assert_array_equal(ours_n, likeliest_t[len(prompt) - 1 :])
    assert len({*np.asarray(ours_bn).flat}) > 6  # and not one token over and over


def check_round_trip(imported: Imported, theirs: Any, tmp_path: Path, rng: np.random.Generator) -> None:
    """What is exported is imported again bit by bit, and transformers has its own logits back."""
    from transformers import AutoConfig

    from transformer.interop.hub_folder import family_for

    folder, model, params = tmp_path / "exported", imported.hub.model, imported.params
    folder.mkdir()
    family = imported.hub.folder.family
    config = family_for(imported.hub.experiment.config, family.model_type)[1]
    places = table.places(family.rules(model), imported.shapes, imported.vocab_size)
    write_tensors(folder, outputs(places, params, np.dtype(np.float32)), 1 << 40)
    again = load(places, open_tensors(folder), imported.hub.abstract)
    for path, leaf in flat(again).items():
        np.testing.assert_array_equal(leaf, flat(params)[path], path)
    assert family.model(config) == family.model(imported.hub.folder.config)
    AutoConfig.for_model(**config).save_pretrained(folder)
    with contextlib.redirect_stderr(io.StringIO()):
        back = type(theirs).from_pretrained(folder).eval()
    tokens_bt = rng.integers(0, imported.vocab_size, (1, 12), np.int32)
    np.testing.assert_array_equal(their_logits(back, tokens_bt), their_logits(theirs, tokens_bt))


def check_copies(imported: Imported, tmp_path: Path, *ignored: str) -> None:
    """Tensors that are there once more, and others of no meaning, are read over; copies with another value
    are refused."""
    from safetensors.numpy import load_file, save_file

    def read(tensors: dict[str, np.ndarray]) -> Any:
        save_file(tensors, tmp_path / "model.safetensors")
        hub = Hub(str(tmp_path))
        return flat(hub.read(hub.abstract))

    folder, copies = imported.hub.folder, imported.hub.folder.family.copies(imported.hub.model)
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_text((folder.path / name).read_text())
    own = load_file(folder.path / "model.safetensors")
    names = {path: name for name, place in imported.hub.places.items() for path in place.paths}
    tensors = own | {copy: own[names[path]].copy() for copy, path in copies.items()}
    tensors |= {name: np.ones(3, np.float32) for name in ignored}
    for path, leaf in read(tensors).items():
        np.testing.assert_array_equal(leaf, flat(imported.params)[path], path)
    for copy, path in copies.items():
        other = tensors[copy].copy()
        other[-1] += 1
        for wrong in (other, other[:-1]):
            with pytest.raises(UserError, match=f"{copy} differs from {names[path]}; such models"):
                read(tensors | {copy: wrong})


def broken_tables(
    rules: Sequence[Rule], shapes: dict[str, tuple[int, ...]]
) -> Iterator[tuple[str, list[Rule]]]:
    """Each entry of a table wrong, one at a time: left out, of another tensor, with other axes."""

    def with_(i: int, rule: Rule) -> list[Rule]:
        return [*rules[:i], rule, *rules[i + 1 :]]

    for i, rule in enumerate(rules):
        yield f"{rule.theirs} left out", [*rules[:i], *rules[i + 1 :]]
        if rule.reverse:
            yield f"{rule.theirs}: not reversed", with_(i, dataclasses.replace(rule, reverse=""))
        if rule.turns > 1:
            yield f"{rule.theirs}: in one turn", with_(i, dataclasses.replace(rule, turns=1))
        if len(rule.layers) > 1:
            backwards = dataclasses.replace(rule, layers=rule.layers[::-1])
            yield f"{rule.theirs}: layers backwards", with_(i, backwards)
        if len(rule.paths) > 1:
            turned = (*rule.paths[1:], rule.paths[0])
            yield f"{rule.theirs}: paths turned", with_(i, dataclasses.replace(rule, ours=turned))
        for j, other in enumerate(rules):
            if j > i and _alike(rule, other, shapes):
                # Kinds of layers may have tensors of the same name, of other layers.
                of = "layers" if rule.theirs == other.theirs else "theirs"
                exchanged = with_(i, dataclasses.replace(rule, **{of: getattr(other, of)}))
                exchanged[j] = dataclasses.replace(other, **{of: getattr(rule, of)})
                yield f"{rule.theirs} for {other.theirs}", exchanged
        groups = [group for group in table._groups(rule.axes.partition("->")[0]) if len(group) > 1]
        for group in groups:
            for order in itertools.permutations(group):
                if order != group:
                    left, _, right = rule.axes.partition("->")
                    changed = left.replace(" ".join(group), " ".join(order))
                    axes = f"{changed}->{right}"
                    yield f"{rule.theirs}: {axes}", with_(i, dataclasses.replace(rule, axes=axes))


def _alike(rule: Rule, other: Rule, shapes: dict[str, tuple[int, ...]]) -> bool:
    first, second = (table.places_of(each, shapes, 0) for each in (rule, other))
    a, b = next(iter(first)), next(iter(second))
    of_as_many = rule.theirs != other.theirs or len(rule.layers) == len(other.layers)
    return a.shape == b.shape and len(a.index) == len(b.index) and of_as_many


def check_broken_tables(
    imported: Imported, rng: np.random.Generator, length: int, at_least: int, same: Sequence[str] = ()
) -> None:
    """Every table with one wrong entry is refused, or its logits are wrong; but those named `same`."""
    tokens_bt = rng.integers(0, imported.vocab_size, (1, length), np.int32)
    right = imported.logits(imported.params_by(imported.rules), tokens_bt)
    caught = 0
    for name, rules in broken_tables(imported.rules, imported.shapes):
        with contextlib.suppress(UserError):
            wrong = imported.logits(imported.params_by(rules), tokens_bt)
            assert close(wrong, right) == (name in same), name
        caught += 1
    assert caught >= at_least, caught
