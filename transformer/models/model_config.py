"""The keys of a model's config that make another function of the same parameters, and those of a mixer's
state."""

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from transformer.conditions import FieldOf, only, unless
from transformer.config import Bounded, Nonnegative, NonnegativeFloat, Positive, idle_keys, to_values
from transformer.layers.mixers import MIXERS


@dataclass(frozen=True)
class ModelConfig(Bounded):
    """The config of a model, and what a run takes of it together with the parameters.

    The function that given parameters compute depends on every key but those that a class names here: a new
    key does, until it is named.
    """

    own: ClassVar[tuple[str, ...]] = ()
    """Keys of training and of the computation, which a run does not inherit: to rounding the function is the
    same."""

    harmless: ClassVar[tuple[str, ...]] = ()
    """Inherited keys with which the function is the same as long as all arrays have their shapes."""

    changing: ClassVar[tuple[str, ...]] = ()
    """Inherited keys that exist to change the function of trained parameters: others are refused."""

    @property
    def layers(self) -> tuple[str, ...]:
        """The kinds of layers, repeated over the depth; (): one kind, or no stack of layers."""
        return ()

    @property
    def kinds(self) -> Mapping[str, Any]:
        """Name -> config of each kind of layers of a stack; {}: no stack."""
        return {}

    @property
    def parametrization(self) -> str:
        """See `StackConfig`."""
        return "standard"

    @property
    def scan_layers(self) -> bool:
        """See `StackConfig`."""
        return False

    @property
    def lora_rank(self) -> int:
        """See `LoraConfig`."""
        return 0

    @property
    def scale_embeddings(self) -> bool:
        """See `TextConfig`."""
        return False

    @classmethod
    def inherited(cls, theirs: Mapping[str, Any], here: Mapping[str, Any]) -> dict[str, Any]:
        """The keys that a run whose values are `here` takes of those of the run with its parameters."""
        names = [field.name for field in dataclasses.fields(cls) if field.name not in cls.own]
        return {name: theirs[name] for name in names if name in theirs}

    def settled(self) -> dict[str, Any]:
        """The values of keys that by default follow from another key, which may change with these set."""
        return {}

    def function(self) -> dict[str, Any]:
        """Key -> value of all that matters to a run that takes the parameters over: keys without effect and
        `own` ones are left out."""
        without = {*self.own, *(key for key, *_ in idle_keys(self))}
        return {key: value for key, value in to_values(self).items() if key not in without}


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


@dataclass(frozen=True)
class ExpertKeys(StateKeys):
    """Keys of mixtures of experts, and those of `StateKeys`."""

    # feed-forwards in a mixture of experts; 0: one, for all tokens
    num_experts: Annotated[Nonnegative, unless("feed_forward", "none")] = 0
    # experts that compute a token, those with the largest probabilities
    experts_per_token: Annotated[Positive, only("num_experts")] = 2
    # an expert's capacity in training: 1 is its mean load; 0: none
    capacity_factor: Annotated[NonnegativeFloat, only("num_experts")] = 0.0
    router_bias: Annotated[bool, only("num_experts")] = False  # a bias of each expert in the router's logits
    # hidden width of an expert that computes every token; 0: none
    shared_d_ff: Annotated[Nonnegative, only("num_experts")] = 0
    # its output times a sigmoid of the token (Qwen-MoE)
    shared_gate: Annotated[bool, only("shared_d_ff")] = False
