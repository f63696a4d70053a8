"""The keys of mixers whose state is a matrix for each head."""

import functools
from dataclasses import dataclass
from typing import Annotated

from transformer.conditions import FieldOf
from transformer.config import Nonnegative
from transformer.layers.mixers import MIXERS
from transformer.models.model_config import ModelConfig

of_mixer = functools.partial(FieldOf, "mixer", MIXERS)


@dataclass(frozen=True)
class StateKeys(ModelConfig):
    """Keys that only recurrent mixers have."""

    # width of a head's values; 0: head_dim
    value_dim: Annotated[Nonnegative, of_mixer("value_dim")] = 0
    # heads of queries and keys, each for a group of heads; 0: as many as num_heads, mamba2: 1
    num_key_heads: Annotated[Nonnegative, of_mixer("num_key_heads")] = 0
    # taps of the convolutions of queries, keys and values; 1: none; 0: 4, gated_linear: none
    conv_width: Annotated[Nonnegative, of_mixer("conv_width")] = 0
    # delta rules: eigenvalues of transitions in (-1, 1), not (0, 1)
    negative_eigenvalues: Annotated[bool, of_mixer("negative_eigenvalues")] = False
