"""adapter_config.json of PEFT: which linear layers have a low-rank adapter, of which rank and scale."""

import math
import re
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

from transformer.errors import UserError, brief
from transformer.interop.family import positive_number, shown_key, value_or, whole_number
from transformer.interop.harmless import words_of
from transformer.interop.json_files import as_list, read_object

NAME = "adapter_config.json"

READ = words_of(
    "peft_type base_model_name_or_path r lora_alpha use_rslora target_modules exclude_modules rank_pattern "
    "alpha_pattern layers_to_transform layers_pattern modules_to_save bias init_lora_weights"
)
SILENT = words_of(
    "task_type inference_mode revision auto_mapping peft_version lora_dropout megatron_core fan_in_fan_out "
    "qalora_group_size runtime_config loftq_config eva_config"
)
"""Keys of training, of programs, and of what the model's own folder says."""

EXPECTED: dict[str, tuple] = {
    "peft_type": ("LORA",),
    "bias": ("none", None),
    "init_lora_weights": (True, False, None, "gaussian", "orthogonal", "eva"),  # others change the model too
}


class PeftConfig:
    """The config of an adapter.

    Raises:
      UserError: it is of a method other than LoRA, or of a variant that computes something else.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.values = path, read_object(path)
        try:
            self._check(self.values)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None

    def _check(self, values: dict[str, Any]) -> None:
        for name, expected in EXPECTED.items():
            if (value := values.get(name)) not in expected:
                raise UserError(f"{name}: {_short(value)}; expected one of {', '.join(map(repr, expected))}")
        for name, value in values.items():
            if name not in READ | SILENT and value not in (None, False, 0, "", [], {}):
                only = "expected it off: only W + lora_alpha / r B A is known here; PEFT can merge others"
                raise UserError(f"{shown_key(name)}: {_short(value)}; {only}")
            types = (int,) if name == "layers_to_transform" else (str,)
            if name.endswith(("_modules", "_to_save", "_to_transform", "layers_pattern")) and not all(
                type(item) in types for item in as_list(value)
            ):
                raise UserError(f"{name}: {_short(value)}; expected names, or numbers of layers")
        self.rank, self.alpha = whole_number(values, "r", 8), _alpha(values, "lora_alpha", 8)
        for name, check in (("rank_pattern", whole_number), ("alpha_pattern", _alpha)):
            pattern = value_or(values, name, {})
            if not isinstance(pattern, dict):
                raise UserError(f"{name}: {_short(pattern)}; expected an object, {{...}}")
            for key in pattern:
                check(pattern, key, 8)
        if not values.get("target_modules"):
            raise UserError("target_modules: missing key; expected names of layers, or a regular expression")

    def rank_of(self, module: str) -> int:
        """r of a module."""
        return int(self._by_pattern("rank_pattern", module, self.rank))

    def scale_of(self, module: str) -> Fraction:
        """lora_alpha / r of a module, with `use_rslora` lora_alpha / sqrt(r)."""
        alpha, rank = self._by_pattern("alpha_pattern", module, self.alpha), self.rank_of(module)
        return Fraction(alpha / math.sqrt(rank)) if self.values.get("use_rslora") else Fraction(alpha) / rank

    def _by_pattern(self, name: str, module: str, default: Any) -> Any:
        pattern = self.values.get(name) or {}
        keys = (key for key in pattern if self._match(r"(?:.*\.)?({})$", key, module))
        return pattern.get(next(keys, None), default)

    def _match(self, around: str, expression: str, module: str) -> re.Match | None:
        try:
            return re.match(around.format(expression), module)
        except (re.error, OverflowError, RecursionError):
            raise UserError(f"{self.path}: {_short(expression)} is not a regular expression") from None

    def _names(self, key: str, module: str) -> bool:
        """Whether a list of ends of names, or a regular expression of a whole name, has a module."""
        value = self.values.get(key)
        if isinstance(value, str):
            return bool(self._match(r"(?:{})\Z", value, module))
        return any(f".{module}".endswith(f".{name}") for name in value or ())

    def saves(self, module: str) -> bool:
        """Whether a module is trained and stored whole."""
        names = as_list(self.values.get("modules_to_save"))
        return any(self._match(r"(?:.*\.)?{}(?:$|\..*)", name, module) for name in names)

    def targets(self, linear: Iterable[str], adapted: Iterable[str]) -> list[str]:
        """The modules that have an adapter: of the `linear` ones those that target_modules names, or where
        it says all, those that are `adapted`.

        Raises:
          UserError: there are none.
        """
        linear, targets = [*linear], self.values["target_modules"]
        whole = isinstance(targets, str)
        if whole and targets.lower() == "all-linear":
            chosen = [module for module in linear if module in {*adapted}]
        else:
            everywhere = linear if whole else targets  # a full name counts in any layer
            chosen = [m for m in linear if self._names("target_modules", m)]
            chosen = [m for m in chosen if m in everywhere or self._in_layers(m)]
        chosen = [m for m in chosen if not self._names("exclude_modules", m) and not self.saves(m)]
        if not chosen:
            known = ", ".join(dict.fromkeys(module.rpartition(".")[2] for module in linear))
            problem = f"target_modules: {_short(targets)} names no linear layer of the model"
            raise UserError(f"{self.path}: {problem}; expected some of {known}")
        return chosen

    def _in_layers(self, module: str) -> bool:
        """Whether a module is in one of `layers_to_transform`."""
        layers = as_list(self.values.get("layers_to_transform"))
        lists = as_list(self.values.get("layers_pattern")) or [r"[^.]*"]
        matches = (self._match(r"(?:.*?\.)?{}\.(\d+)\.", name, module) for name in lists)
        return not layers or any(match and int(match[1]) in layers for match in matches)


def base_of(config: PeftConfig, base: str) -> Path:
    """The folder of the model that an adapter changes: `base`; or the adapter's own if it has a model too,
    that of base_model_name_or_path, or one with its last name beside the adapter.

    Raises:
      UserError: none is there.
    """
    own, name = config.path.parent, str(config.values.get("base_model_name_or_path") or "")
    beside = own.absolute().parent / (Path(name).name or "base")
    for folder in map(Path, (Path(base).expanduser(),) if base else (own, name or own, beside)):
        whole = folder != own or any(own.glob("model*.safetensors"))
        if whole and (folder / "config.json").is_file():
            return folder
    if base:
        raise UserError(f"--base: {base}: there is no model in it; expected config.json and *.safetensors")
    of = f"the model {_short(name)}" if name else "a model without a name"
    remedy = f"name its folder (--mode=import --base=models/mine), or put it at {beside}"
    raise UserError(f"{own}: it is a PEFT adapter of {of}, which is not in a folder here; {remedy}")


def _alpha(values: dict[str, Any], name: str, default: float) -> float:
    """A number above 0 that float32 has."""
    if (alpha := float(min(positive_number(values, name, default), 1e300))) > 1e30:
        raise UserError(f"{name}: {_short(values[name])}; expected a number above 0, at most 1e30")
    return alpha


def _short(value: Any) -> str:
    return brief(repr(value), 100)
