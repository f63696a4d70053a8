"""Writes a run's LoRA adapters as PEFT loads them onto their model, for `--mode=export --format=peft`."""

import argparse
from collections.abc import Callable, Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from commands.exporters.named_tensors import places_of
from transformer.errors import UserError
from transformer.interop.adapters.low_rank import Pair, fused, half_paths, halves, inputs_axis, is_linear
from transformer.interop.adapters.peft_config import NAME
from transformer.interop.adapters.peft_folder import PREFIX, TENSORS, PeftFolder, module_name
from transformer.interop.tensor_rules import Place
from transformer.interop.tensors import Output, write_file
from transformer.run_folder import HUB
from transformer.training.checkpoints.function import differences
from workdir.folder import write_json
from workdir.hub import Hub

TASKS = {"sequence_to_sequence": "SEQ_2_SEQ_LM", "language_modeling": "CAUSAL_LM"}
"""Objective of a family -> task_type."""

ROUTER = "/router/"
"""The layer of a mixture of experts that is not a linear layer in transformers."""


def write(opened: Any, step: Any, part: Path, flags: argparse.Namespace, tokenizer: Callable) -> str:
    """Writes adapter_config.json, the tensors and, by `tokenizer`, the tokenizer into the new folder `part`;
    returns a line on them.

    Raises:
      UserError: the run has no adapters; its model is not that of the folder --base, or has other parameters
        than it apart from adapters and heads.
    """
    model, origin = opened.config.model, opened.config.initialize_from
    if not model.lora_rank:
        raise UserError("--format=peft: the run has no adapters: model.lora_rank: 0; expected at least 1")
    if not flags.base and not origin.startswith(HUB):
        example = "models/lm, say, as --mode=export writes it of a run that has no adapters"
        raise UserError(f"--base: which folder has the model that the adapters change? {example}")
    base = Path(flags.base or origin.removeprefix(HUB)).expanduser()
    hub = Hub(str(PeftFolder(base).base if (base / NAME).is_file() else base))
    for difference in differences(opened.config, hub.config):
        if difference.effect is None:
            raise UserError(f"--base: {hub.folder.path}: {difference.explained()}")
    family, values, by_name = places_of(opened, hub.folder.family.model_type)
    flat = traverse_util.flatten_dict(opened.restore_params(step), sep="/")
    saved = _saved(flat, by_name, hub, family)
    linear = {
        module_name(x.name.removesuffix(".weight"), family): x for x in by_name.values() if is_linear(x)
    }
    pairs = {module: pair for module, place in linear.items() if (pair := _pair(flat, place))}
    if not pairs:
        raise UserError("--format=peft: all adapters are zero, and the model is that of --base")
    if routers := [module for module in pairs if ROUTER in linear[module].paths[0]]:
        raise UserError(
            f"--format=peft: {routers[0]} has an adapter; PEFT has none for the router of experts"
        )
    ranks = {module: len(a) for module, (a, _) in pairs.items()}
    scale, rank = Fraction(model.lora_alpha) / model.lora_rank, max(ranks.values())
    alphas = {r: int(x) if (x := scale * r).denominator == 1 else float(x) for r in {*ranks.values()}}
    config = {
        "peft_type": "LORA",
        "task_type": "SEQ_CLS" if family.labelled and not family.pixels else TASKS.get(family.experiment),
        "base_model_name_or_path": str(hub.folder.path),
        "r": rank,
        "lora_alpha": alphas[rank],
        "rank_pattern": {module: r for module, r in ranks.items() if r != rank},
        "alpha_pattern": {module: alphas[r] for module, r in ranks.items() if r != rank},
        "target_modules": _targets(ranks, linear),
        "modules_to_save": [*dict.fromkeys(saved.values())] or None,
        "fan_in_fan_out": inputs_axis(linear[next(iter(pairs))]) == 0,
    } | {"bias": "none", "lora_dropout": 0.0, "use_rslora": False, "inference_mode": True}
    arrays = {
        f"{module}.lora_{letter}.weight": x
        for module, pair in pairs.items()
        for letter, x in zip("AB", pair, strict=True)
    } | {module_name(name, family): _theirs(flat, by_name[name]) for name in saved}
    dtype = jnp.dtype(flags.dtype)
    part.mkdir(parents=True)
    write_file(part / TENSORS, [_output(PREFIX + name, dtype, x) for name, x in arrays.items()])
    write_json(part / NAME, config, indent=2)
    if not family.write_pixels:
        tokenizer(part, opened.experiment, values, family.paired)
    return f"adapters of {len(pairs)} layers of {hub.folder.path}, of rank {rank}"


def _output(name: str, dtype: Any, x: np.ndarray) -> Output:
    return Output(name, dtype, x.shape, lambda: x)


def _theirs(flat: dict[str, Any], place: Place) -> np.ndarray:
    return place.theirs([np.asarray(flat[path][place.index]) for path in place.paths])


def _pair(flat: dict[str, Any], place: Place) -> Pair | None:
    """A and B of a kernel; None if it has no adapter, or one of zeros."""
    parts: list[Any] = []
    for number, path in enumerate(place.paths):
        down = flat.get(half_paths(path)[0])
        own = [] if down is None else halves(place, number, down.shape[-1])
        parts.append(tuple(_theirs(flat, half) for half in own) or None)
    pair = fused(parts, place.shape[1 - inputs_axis(place)], place.rows)
    return pair and (pair[0], place.by_turn(pair[1]))


def _saved(flat: dict[str, Any], by_name: dict[str, Place], hub: Hub, family: Any) -> dict[str, str]:
    """The tensors that are stored whole, and their modules: those that differ from the model's, and a
    classifier's head.

    Raises:
      UserError: one in the blocks, or a table, differs.
    """
    tensors, saved = hub.folder.tensors, dict[str, str]()
    for name, place in by_name.items():
        module, path, ours = name.rpartition(".")[0], place.paths[0], _theirs(flat, place)
        same = name in tensors and np.array_equal(np.asarray(tensors[name].open(), np.float32), ours)
        if same and not (family.labelled and path.startswith("head/")):
            continue
        if not module.startswith(family.prefix or " "):
            module = module.partition(".")[0]  # a head is stored whole
        if place.index or path.endswith(("/table", "_bias")):
            why = "differs from the run's, which trained it too, or started from another model"
            raise UserError(f"--base: {hub.folder.path}: {name} {why}; expected the model that is adapted")
        saved |= {item: module for item in by_name if item.startswith(f"{module}.")}
    return saved


def _targets(adapted: Iterable[str], linear: Iterable[str]) -> list[str]:
    """The last parts of the names of modules if these name no others, otherwise the names."""
    last = {name.rpartition(".")[2] for name in adapted}
    same = {name for name in linear if name.rpartition(".")[2] in last} == {*adapted}
    return sorted(last if same else adapted)
