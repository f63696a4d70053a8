"""Writes a run's model as a GGUF file, which llama.cpp reads, for `--mode=export --format=gguf`.

It needs the library of that format: pip install '.[gguf]'.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from commands.exporters.gguf_architectures import ARCHITECTURES
from transformer.errors import UserError

FILE = "model.gguf"

OBJECTIVES = ("masked_lm", "contrastive")
"""Objectives of encoders that are written as vectors of texts, without what follows the encoder."""

POOLINGS = {"mean": "MEAN", "cls": "CLS", "first": "CLS", "last": "LAST"}
"""`model.pooling` -> its name in the format."""


def check(flags: argparse.Namespace) -> None:
    """Raises `UserError` if the library is not there."""
    try:
        import gguf  # noqa: F401
    except ImportError:
        raise UserError("--format=gguf: the library gguf is not installed: pip install '.[gguf]'") from None


def write(opened: Any, step: Any, part: Path, flags: argparse.Namespace) -> str:
    """Writes the file into the new folder `part`, one tensor at a time; returns a line on it.

    Raises:
      UserError: the model is of no family of `ARCHITECTURES`, or has a part that this format or its
        architecture does not have: a head, other windows, positions, an activation, a tokenizer.
    """
    import gguf

    from commands.exporters.gguf_tokenizers import fields
    from commands.exporters.named_tensors import tensors_of

    family, values, by_name, outputs = tensors_of(
        opened, opened.restore_params(step), flags.family, flags.dtype
    )
    if family.model_type not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise UserError(
            f"--format=gguf: this model is exported as {family.model_type!r}; expected one of {known}"
        )
    architecture = ARCHITECTURES[family.model_type]
    architecture.check(values)
    vocab_size = opened.experiment.model.vocab_size
    described = [("name", family.model_type), ("vocab_size", vocab_size), *_pooling(opened, architecture)]
    described += [(name, architecture.size(name, values)) for name in architecture.sizes]
    described += fields(opened.experiment, vocab_size)
    part.mkdir(parents=True)
    writer: Any = gguf.GGUFWriter(part / FILE, architecture.name)
    for name, value in described:
        if value is not None:
            getattr(writer, f"add_{name}")(value)
    kinds = gguf.GGMLQuantizationType
    layers = architecture.size("block_count", values)
    (layout,) = (key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture.name)
    names = gguf.get_tensor_name_map(layout, layers)
    wide = kinds.BF16 if flags.dtype == "bfloat16" else kinds.F32
    writer.add_file_type(int(getattr(gguf.LlamaFileType, "ALL_F32" if wide is kinds.F32 else "MOSTLY_BF16")))
    written = set()
    for place in by_name.values():
        short = place.name.removeprefix(architecture.prefix)
        if short.startswith(architecture.heads or ()):
            continue
        written.add(place.name)
        theirs: Any = names.get_name(short, try_suffixes=(".weight", ".bias"))
        # Vectors are float32 there, and tables of positions and types, which are added to others.
        narrow = len(place.shape) < 2 or theirs.startswith(("position_embd", "token_types"))
        kind = kinds.F32 if narrow else wide
        size = int(np.prod(place.shape)) * (4 if kind is kinds.F32 else 2)
        shape = architecture.changed(place.name, np.empty(place.shape, np.int8), values).shape
        writer.add_tensor_info(theirs, shape, np.dtype(np.float32), size, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for output in outputs:
        if output.name in written:
            x = architecture.changed(output.name, output.read(), values)
            narrow = x.ndim < 2 or output.name.endswith(
                ("position_embeddings.weight", "type_embeddings.weight")
            )
            writer.write_tensor_data(np.ascontiguousarray(x.astype(np.float32) if narrow else x))
    writer.close()
    size = sum(int(np.prod(place.shape)) for place in by_name.values() if place.name in written)
    return f"{size:,} parameters as {FILE} ({architecture.name})"


def _pooling(opened: Any, architecture: Any) -> list[tuple[str, Any]]:
    """The field of the pooling by which an encoder makes a vector of its states; [] of other models.

    Raises:
      UserError: it is an encoder of another objective, or its vectors are pooled in a way without a name.
    """
    import gguf

    if not architecture.heads:
        return []
    config = opened.config
    if config.experiment not in OBJECTIVES:
        why = f"has a head, which is not written; expected {' or '.join(OBJECTIVES)}"
        raise UserError(f"--format=gguf: experiment: {config.experiment!r} {why}")
    pooling = vars(config.model).get("pooling", "mean")
    if pooling not in POOLINGS:
        raise UserError(f"--format=gguf: model.pooling: {pooling!r}; expected one of {', '.join(POOLINGS)}")
    return [("pooling_type", getattr(gguf.PoolingType, POOLINGS[pooling]))]
