"""The tensors of a run's model under the names of another library, for `--mode=export`."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import traverse_util

from transformer.interop.hub_folder import family_for
from transformer.interop.tensor_rules import places
from transformer.interop.transfer import outputs
from transformer.models.transforms.lora import merged


def tensors_of(opened: Any, params: Any, name: str, dtype: str) -> tuple[Any, dict, dict[str, Any], Any]:
    """The family, `name` or the first, of a run's model, its config.json, the places of its tensors by their
    names, and the tensors, each computed when it is read."""
    family, values, by_name = places_of(opened, name)
    return family, values, by_name, outputs(by_name, merged(params, opened.config.model), jnp.dtype(dtype))


def places_of(opened: Any, name: str) -> tuple[Any, dict, dict[str, Any]]:
    """The family, `name` or the first, of a run's model, its config.json, and the places of its tensors by
    their names."""
    model = opened.experiment.config.model
    family, values = family_for(opened.config, name)
    abstract = jax.eval_shape(lambda params: merged(params, model), opened.abstract.params)
    shapes = {path: leaf.shape for path, leaf in traverse_util.flatten_dict(abstract, sep="/").items()}
    used = model
    if family.write_pixels:  # theirs has as many positions as an image has patches, ours may have more
        used = dataclasses.replace(model, max_length=model.length(opened.config.data.image_size))
    rules = family.rules(used)
    if family.heads:  # of parts without a parameter here, and of what is not the function's: a temperature
        rules = [rule for rule in rules if rule.paths[0] in shapes]
        shapes = {path: shape for path, shape in shapes.items() if path not in opened.experiment.heads}
    return family, values, places(rules, shapes, opened.experiment.model.vocab_size)
