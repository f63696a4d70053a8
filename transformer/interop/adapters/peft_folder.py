"""A folder as PEFT writes it, adapter_config.json and adapter_model.safetensors, checked against a model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from transformer.errors import UserError, brief
from transformer.interop.adapters.low_rank import LowRank, inputs_axis, is_linear
from transformer.interop.adapters.peft_config import NAME, PeftConfig, base_of
from transformer.interop.family import Family
from transformer.interop.tensor_rules import Place
from transformer.interop.tensors import Tensor, read_header

TENSORS = "adapter_model.safetensors"

PREFIX = "base_model.model."
"""The beginning of the names of tensors, before that of a module of the model."""

MODULES: dict[str, tuple[tuple[str, str], ...]] = {
    "vit": (
        ("encoder.layer.", "layers."),
        *((f"attention.attention.{name}", f"attention.{name[0]}_proj") for name in ("query", "key", "value")),
        ("attention.output.dense", "attention.o_proj"),
        ("intermediate.dense", "mlp.fc1"),
        ("output.dense", "mlp.fc2"),
    )
}
"""Parts of names in the files of a family, and in the modules of transformers 5, which are PEFT's names."""


def module_name(name: str, family: Family) -> str:
    """The name in the modules of transformers of a tensor, or of its module."""
    for stored, module in MODULES.get(family.model_type, ()):
        name = name.replace(stored, module)
    return name


@dataclass(frozen=True)
class Computed(Tensor):
    """A float32 tensor that is computed when it is read, from what the file `path` has."""

    read: Callable[[], np.ndarray]

    @classmethod
    def of(cls, path: Path, shape: tuple[int, ...], read: Callable[[], np.ndarray]) -> "Computed":
        """One of this shape."""
        return cls(path, np.dtype(np.float32), shape, 0, read)

    def open(self) -> np.ndarray:
        """The array."""
        return self.read()


class PeftFolder:
    """An adapter in a local folder, and `base`, the folder of its model.

    Raises:
      UserError: see `PeftConfig` and `base_of`; there is no file of tensors.
    """

    def __init__(self, path: str | Path, base: str = "") -> None:
        self.path = Path(path).expanduser()
        self.config, self.file = PeftConfig(self.path / NAME), self.path / TENSORS
        if not self.file.is_file():
            code = "adapter_model.bin is not read: such a file can run code, save it as safetensors"
            why = f"; {code}" if (self.path / "adapter_model.bin").is_file() else ""
            raise UserError(f"{self.path}: there is no {TENSORS}{why}")
        self.base = base_of(self.config, base)

    def read(
        self, family: Family, places: Mapping[str, Place]
    ) -> tuple[dict[str, LowRank], dict[str, Tensor]]:
        """The changes of kernels by the names of their tensors, and tensors that are replaced, of a model
        of this family whose tensors are at `places`.

        Raises:
          UserError: a tensor is missing, unknown, of another shape, or not finite.
        """
        stored = self._stored()
        adapted = {name.partition(".lora_A.")[0] for name in stored if ".lora_A." in name}
        # Names as in files, which older modules have, or as in modules; of a model without a head, bare.
        spellings = [dict(places), {module_name(name, family): place for name, place in places.items()}]
        spellings += [{n.removeprefix(family.prefix): p for n, p in known.items()} for known in spellings]
        by_name = max(spellings, key=lambda known: sum(f"{module}.weight" in known for module in adapted))
        linear = {name.removesuffix(".weight"): place for name, place in by_name.items() if is_linear(place)}
        changes, replaced = {}, {}
        for module in self.config.targets(linear, adapted):
            place, rank = linear[module], self.config.rank_of(module)
            axis = inputs_axis(place)
            a = self._take(stored, f"{module}.lora_A.weight", (rank, place.shape[axis]))
            b = self._take(stored, f"{module}.lora_B.weight", (place.shape[1 - axis], rank))
            changes[place.name] = LowRank(_floats(a), _floats(b), self.config.scale_of(module))
        for name, place in by_name.items():
            if self.config.saves(name.rpartition(".")[0]) and name in stored:
                replaced[place.name] = self._take(stored, name, place.shape)
        if stored:
            name = min(stored)
            why = "not of a linear layer in target_modules, nor in modules_to_save"
            if self.config.saves(name.rpartition(".")[0]):
                why = f"in modules_to_save, but a {family.architecture} has no such module: save one that has"
            raise UserError(f"{self.file}: it has {brief(PREFIX + name, 160)}, which is {why}")
        return changes, replaced

    def _stored(self) -> dict[str, Tensor]:
        """The tensors by the names that the model has for them."""
        stored = read_header(self.file)
        if foreign := [name for name in stored if not name.startswith(PREFIX)]:
            raise UserError(
                f"{self.file}: {brief(foreign[0], 160)}: expected a name that starts with {PREFIX}"
            )
        return {name[len(PREFIX) :].replace(".modules_to_save.", "."): x for name, x in stored.items()}

    def _take(self, stored: dict[str, Tensor], name: str, shape: tuple[int, ...]) -> Tensor:
        """Takes a tensor of this shape from those that are there."""
        tensor, called = stored.pop(name, None), PREFIX + name
        if tensor is None:
            raise UserError(f"{self.file}: it lacks {called}")
        if tensor.shape != shape:
            shapes = f"{list(tensor.shape)}; {NAME} and the model make it {list(shape)}"
            raise UserError(f"{self.file}: {called} has the shape {shapes}")
        if not np.isfinite(_floats(tensor)).all():
            raise UserError(f"{self.file}: {called} has values that are not finite")
        return tensor


def _floats(tensor: Tensor) -> np.ndarray:
    return np.asarray(tensor.open(), np.float32)
