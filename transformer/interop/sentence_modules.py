"""The modules of sentence-transformers after an encoder: pooling and normalisation, in and out.

A folder has `modules.json`, a list of {"path", "type"}, and for each module a folder with its `config.json`.
Source: https://sbert.net, "Creating Custom Models", and its release 6.2.
"""

import json
from pathlib import Path
from typing import Any

from transformer.data.tokenization.tokenizer_settings import settings_beside
from transformer.errors import UserError, brief
from transformer.interop.json_files import read_list, read_object

MODULES, ENCODER, PROMPTS = "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"

POOLINGS = {"mean": "mean", "cls": "cls", "max": "max", "lasttoken": "last"}
"""Their `pooling_mode` -> ours."""

FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""The flags of older folders -> the mode that each switches on."""


def read_modules(folder: Path, longest: int) -> tuple[dict[str, Any], int]:
    """Our keys of `model`, pooling and normalisation, and the most tokens of a text, at most `longest`;
    without modules.json those of sentence-transformers for such a folder: the mean.

    Raises:
      UserError: there is another module, or a module computes what cannot be expressed here.
    """
    if not (folder / MODULES).is_file():
        return {"pooling": "mean", "normalize": False}, longest
    modules = read_list(folder / MODULES)
    kinds = [str(module.get("type")).rpartition(".")[2] for module in modules if isinstance(module, dict)]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        shown = brief(", ".join(kinds), 200)
        raise UserError(f"{folder / MODULES}: {shown}; expected Transformer, Pooling and maybe Normalize")
    if modules[0].get("path"):
        raise UserError(f"{folder / MODULES}: the Transformer is in {modules[0]['path']!r}; expected ''")
    of_encoder, prompts = (
        read_object(folder / name) if (folder / name).is_file() else {} for name in (ENCODER, PROMPTS)
    )
    if of_encoder.get("do_lower_case"):
        raise UserError(f"{folder / ENCODER}: do_lower_case: true; only false is known here")
    if (name := prompts.get("default_prompt_name")) and prompts.get("prompts", {}).get(name):
        raise UserError(f"{folder / PROMPTS}: default_prompt_name: {name!r}; only null is known here")
    limits = (
        of_encoder.get("max_seq_length"),
        settings_beside(folder / "tokenizer.json").get("model_max_length"),
    )
    most = next((size for size in limits if isinstance(size, int) and size > 2), longest)
    return {"pooling": _pooling(folder, modules[1].get("path")), "normalize": len(kinds) == 3}, min(
        most, longest
    )


def _pooling(folder: Path, name: Any) -> str:
    """Our name of the pooling in the folder of a module."""
    if not isinstance(name, str) or Path(name).name != name:
        raise UserError(f"{folder / MODULES}: path: {str(name)[:80]!r}; expected the name of a folder here")
    path = folder / name / "config.json"
    module = read_object(path)
    old = [mode for flag, mode in FLAGS.items() if module.get(flag)]
    mode = module.get("pooling_mode", old[0] if len(old) == 1 else old or "mean")
    if not isinstance(mode, str) or mode not in POOLINGS:
        raise UserError(f"{path}: pooling_mode: {mode!r}; expected one of {', '.join(POOLINGS)}")
    return POOLINGS[mode]


def write_modules(folder: Path, model: Any, longest: int) -> None:
    """Writes the modules of an embedder, by its `model` keys, that reads `longest` tokens; in the form of
    older releases, which later ones read too."""
    kinds = ["Transformer", "Pooling", *(["Normalize"] if model.normalize else [])]
    paths = ["", *(f"{i}_{kind}" for i, kind in enumerate(kinds) if i)]
    types = [f"sentence_transformers.models.{kind}" for kind in kinds]
    names = zip(range(len(kinds)), paths, types, strict=True)
    modules = [{"idx": i, "name": str(i), "path": path, "type": kind} for i, path, kind in names]
    (theirs,) = (mode for mode, ours in POOLINGS.items() if ours == model.pooling)
    flags = {flag: mode == theirs for flag, mode in FLAGS.items()}
    for path in paths[1:]:
        (folder / path).mkdir()
    _write(folder / MODULES, modules)
    _write(folder / ENCODER, {"max_seq_length": longest, "do_lower_case": False})
    _write(folder / paths[1] / "config.json", {"word_embedding_dimension": model.d_model} | flags)


def _write(path: Path, values: Any) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
