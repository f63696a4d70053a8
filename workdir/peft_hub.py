"""Folders of PEFT, and of transformers, as runs: an adapter is merged into its model, or trained on."""

import functools
import re
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
from flax import traverse_util

from transformer.config import from_values
from transformer.errors import UserError
from transformer.interop.adapters.low_rank import LowRank, half_paths, halves, parted
from transformer.interop.adapters.peft_config import NAME
from transformer.interop.adapters.peft_folder import Computed, PeftFolder
from transformer.interop.tensor_rules import Place
from transformer.models.transforms.lora import linears
from transformer.run_folder import HUB
from workdir.hub import Hub

NOTHING = LowRank(np.zeros((0, 0), np.float32), np.zeros((0, 0), np.float32), Fraction(1))


class PeftHub(Hub):
    """A model with an adapter as a run: with `keep` one that trains the adapter, otherwise one that has it
    merged into the weights, W + scale B A (Hu et al. 2022, section 4.1).

    Raises:
      UserError: see `PeftFolder` and `Hub`; with `keep`, an adapter outside of the blocks.
    """

    def __init__(
        self, path: str, ignore: Sequence[str] = (), base: str = "", keep: bool = True, alone: bool = False
    ) -> None:
        self.adapter = PeftFolder(path, base)
        own = self.adapter.path if (self.adapter.path / "tokenizer.json").is_file() else None
        super().__init__(str(self.adapter.base), ignore, own, alone)
        self.plain = Hub(str(self.adapter.base), ignore, alone=alone)
        places, tensors = self.plain.places, self.folder.tensors
        changes, replaced = self.adapter.read(self.folder.family, places)
        tensors |= replaced
        self.parts = parted([(places[name], low) for name, low in changes.items()])
        if keep:
            self._keep()
        else:
            tensors |= {name: self._merged(places[name], low) for name, low in changes.items()}
        how = "to be trained on" if keep else "merged into the weights"
        self.note = f"{self.adapter.path}: adapters of {len(changes)} layers, {how}"

    def _merged(self, place: Place, low: LowRank) -> Computed:
        kernel = self.folder.tensors[place.name]
        return Computed.of(self.adapter.file, place.shape, lambda: low.applied(kernel.open(), place))

    def _keep(self) -> None:
        """Adds the adapters to the model, with the largest rank and the commonest scale."""
        names, chosen = linears(self.model), set()
        for path in [path.removesuffix("/kernel") for path, _ in self.parts]:
            own = [name for name in names if "blocks/" in path and path.endswith(f"/{name}")]
            if not own:
                why = "outside of the blocks: it can be merged (--mode=import), not trained on"
                raise UserError(f"{self.adapter.path}: it has an adapter of {path}, {why}")
            chosen |= {*own}
        self.rank = max(len(low.a) for low in self.parts.values())
        (self.scale, _), *_ = Counter(low.scale for low in self.parts.values()).most_common(1)
        layers = self.model.lora_layers
        if chosen != {name for name in names if re.search(layers, name)}:
            layers = rf"\b({'|'.join(sorted(chosen))})$"
        lora = {"lora_rank": self.rank, "lora_alpha": float(self.scale * self.rank), "lora_layers": layers}
        self.values["model"] |= lora
        self.values["optimizer"]["train_only"] = "lora"
        self.model = from_values(self._of["model"], self.values["model"])

    def __str__(self) -> str:
        return f"{HUB}{self.adapter.path}"

    @property
    def remarks(self) -> Sequence[str]:
        """See `Origin`."""
        return [*super().remarks, self.note]

    @functools.cached_property
    def places(self) -> dict[str, Place]:
        """Where each of its tensors belongs. Ranks and adapters that it lacks are zero, and stay so."""
        known, here = dict(self.plain.places), traverse_util.flatten_dict(self.abstract, sep="/")
        for place in self.plain.places.values():
            for part, path in enumerate(place.paths):
                if half_paths(path)[0] not in here:
                    continue
                low = self.parts.get((path, place.index), NOTHING)
                ratio = low.scale / self.scale
                pair = low.a, low.b * np.float32(ratio)
                for half, x in zip(halves(place, part, self.rank), pair, strict=True):
                    lacking = [(0, size - own) for size, own in zip(half.shape, x.shape, strict=True)]
                    read = functools.partial(np.pad, x, lacking)
                    known[half.name] = half
                    self.folder.tensors[half.name] = Computed.of(self.adapter.file, half.shape, read)
        return known


def open_hub(
    path: str, ignore: Sequence[str] = (), base: str = "", keep: bool = True, alone: bool = False
) -> Hub:
    """A folder of transformers, or an adapter of PEFT with the model in the folder `base` (see `PeftHub`)."""
    if (Path(path).expanduser() / NAME).is_file():
        return PeftHub(path, ignore, base, keep, alone)
    if base:
        raise UserError(f"--base: {path} is not an adapter of PEFT: it has no {NAME}")
    return Hub(path, ignore, alone=alone)


@functools.lru_cache(maxsize=1)
def find(name: str) -> Hub:
    """The folder that `initialize_from`, "hf:FOLDER", names.

    Raises:
      UserError: it has no model of a known family, and no adapter of one.
    """
    try:
        return open_hub(str(Path(name.removeprefix(HUB))))
    except UserError as error:
        raise UserError(f"config.initialize_from: {error}") from None
