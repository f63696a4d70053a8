"""The config keys of the parametrisation, and how much each logical axis has grown from the base width."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from transformer.config import Bound, Nonnegative
from transformer.errors import UserError
from transformer.layers.attention.positions import POSITIONS
from transformer.layers.mixers import MIXERS, Attention
from transformer.models.config.model_config import ModelConfig

UNROLLED = 1000
"""The most layers that are traced one by one, which takes some minutes."""


@dataclass(frozen=True)
class WidthConfig(ModelConfig):
    """The keys of a parametrisation in which hyper-parameters carry over to other widths and depths.

    The rules are in `transformer.training.optim.parametrization`; `growth` says what they are applied to.
    """

    # mup: initial values and learning rates are scaled so that those tuned at base_width stay the best
    parametrization: Literal["standard", "mup"] = "standard"
    base_width: Nonnegative = 0  # mup: the d_model at which nothing is scaled; d_ff grows in proportion
    base_head_dim: Nonnegative = 0  # mup: head_dim at base_width; 0: the same, and heads grow in number
    base_layers: Nonnegative = 0  # mup: the num_layers at which nothing is scaled; 0: no depth changes it
    # mup: power of base_layers / num_layers that scales a block's output; 1: CompleteP; 0.5: depth-muP
    depth_exponent: Annotated[float, Bound("a power in [0.5, 1]", 0.5, 1.0)] = 1.0

    def __post_init__(self: Any) -> None:
        super().__post_init__()
        deepest = max(self.num_layers, getattr(self, "num_encoder_layers", 0))
        if deepest > UNROLLED and not self.scan_layers:
            raise UserError(f"num_layers: {deepest}; expected at most {UNROLLED:,}, or scan_layers=True")

    @property
    def growth(self: Any) -> dict[str, float]:
        """Logical axis -> its size over that of the same model at `base_width`; other axes do not grow.

        A single key/value head (multi-query attention) stays a single one; several grow as the query heads.
        Latents grow as heads do in width, or with `latent_dim` as the model.
        """
        width = self.d_model / self.base_width
        head = self.key_width / self.base_head_dim if self.base_head_dim else 1.0
        return {
            "embed": width,
            "mlp": width,
            "heads": width / head,
            "kv_heads": 1.0 if self.num_kv_heads == 1 else width / head,
            "head_dim": head,
            "latent": width if self.latent_dim else head,
        }

    @property
    def score_scale(self: Any) -> float:
        """The factor of attention scores, which are then divided by k, not sqrt(k), as heads grow in
        width."""
        return self.growth["head_dim"] ** -0.5

    @property
    def depth(self: Any) -> float:
        """The number of blocks over that at which nothing is scaled."""
        return self.num_layers / self.base_layers if self.base_layers else 1.0

    def check_widths(self: Any) -> None:
        """Raises `UserError` for keys of muP that are missing, idle or impossible together."""
        given = [key for key in BASE if getattr(self, key)]
        if self.parametrization == "standard":
            raise UserError(
                f"{given[0]}: {getattr(self, given[0])} does nothing with parametrization 'standard'"
            )
        if not self.base_width:
            raise UserError("base_width: 0 with parametrization 'mup'; expected the d_model of tuned runs")
        if not (self.head_dim or self.base_head_dim):
            raise UserError(
                "base_head_dim: 0 with parametrization 'mup' and head_dim 0; set head_dim, if heads are more "
                "in wider models, or base_head_dim, if they are wider"
            )
        if self.base_layers and self.norm_placement != "pre":
            raise UserError(
                f"base_layers: {self.base_layers} with norm_placement {self.norm_placement!r}; scaling with "
                f"depth is defined for 'pre'"
            )
        base_heads = self.num_heads / self.growth["heads"]
        if round(base_heads) < 1 or abs(base_heads - round(base_heads)) > 1e-6:
            raise UserError(
                f"num_heads: {self.num_heads} with d_model {self.d_model} are {base_heads:g} at base_width "
                f"{self.base_width}; expected a whole number (with base_head_dim heads grow in width)"
            )
        for kind in self.kinds.values():
            kind._check_heads(self.key_width)

    def _check_heads(self: Any, key_width: int) -> None:
        mixer = MIXERS[self.mixer]
        if issubclass(mixer, Attention) and "head_dim" not in mixer.__dataclass_fields__:
            what = "with parametrization 'mup': its head is as wide as the model"
            raise UserError(f"mixer: {self.mixer!r} {what}")
        if not self.base_head_dim:
            return
        scaled = f"with base_head_dim {self.base_head_dim}"
        if self.key_width != key_width:
            raise UserError(f"head_dim: {self.key_width} and {key_width} in layers of a model {scaled}")
        if POSITIONS[self.position].of_head_width:
            raise UserError(
                f"position: {self.position!r} {scaled}: it scales its own scores; expected head_dim > 0 and "
                f"base_head_dim 0, so that heads grow in number"
            )


BASE = ("base_width", "base_head_dim", "base_layers")
"""Keys that have a meaning only with muP."""


def widened(model: Mapping[str, Any], width: int) -> dict[str, Any]:
    """The keys of `model`, values of a `WidthConfig`, that change in the same model of another `d_model`: by
    the rules of `WidthConfig.growth`.

    Raises:
      UserError: a size would not be a whole number.
    """
    ratio, more_heads = width / model["d_model"], bool(model["head_dim"]) and not model["base_head_dim"]
    growing = {"d_model", "d_ff", "latent_dim", "num_heads" if more_heads else "head_dim"}
    growing |= {"num_kv_heads"} if more_heads and model["num_kv_heads"] > 1 else set()

    def grown(keys: Mapping[str, Any]) -> dict[str, Any]:
        found = {}
        for key in growing & keys.keys():
            if (size := keys[key] * ratio) != round(size):
                raise UserError(f"{key}: {keys[key]} at d_model {model['d_model']} is {size:g} at {width}")
            found[key] = round(size)
        return found

    kinds = {name: {**keys, **grown(keys)} for name, keys in model["layer_kinds"].items()}
    return grown(model) | {"layer_kinds": kinds}
