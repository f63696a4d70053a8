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
    model = opened.experiment.config.model
    family, values = family_for(opened.config, name)
    abstract = jax.eval_shape(lambda params: merged(params, model), opened.abstract.params)
    shapes = {path: leaf.shape for path, leaf in traverse_util.flatten_dict(abstract, sep="/").items()}
    used = model
    if family.write_pixels:  # theirs has as many positions as an image has patches, ours may have more
        used = dataclasses.replace(model, max_length=model.length(opened.config.data.image_size))
    by_name = places(family.rules(used), shapes, opened.experiment.model.vocab_size)
    return family, values, by_name, outputs(by_name, merged(params, model), jnp.dtype(dtype))
