"""Types in the text of HLO, such as "(f32[2,3]{1,0}, pred[])": their arrays, shapes and bytes."""

import math
import re

SIZES = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2, "s64": 8, "u64": 8, "s32": 4, "u32": 4, "s16": 2, "u16": 2}
SIZES |= {"s8": 1, "u8": 1, "pred": 1, "f8e4m3fn": 1, "f8e5m2": 1, "c64": 8}
"""Bytes of the types of HLO."""

ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\](?:\{([^{}]*)\})?")


def nbytes(text: str) -> int:
    """The bytes of all arrays in a type."""
    return sum(_size(kind, shape) for kind, shape, _ in ARRAY.findall(text))


def in_memory(text: str) -> int:
    """The bytes of all arrays in a type that are in the memory of the device, and not on its chip, "S(1)"."""
    arrays = ARRAY.findall(text)
    return sum(_size(kind, shape) for kind, shape, layout in arrays if not re.search(r"S\([1-9]", layout))


def _size(kind: str, shape: str) -> int:
    return SIZES.get(kind, 0) * math.prod(int(n) for n in shape.split(",") if n)


def top_level(text: str) -> list[str]:
    """The elements of a tuple's type, or of a list of operands in parentheses."""
    parts, depth = [""], 0
    for letter in text.strip():
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 1:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def shapes(text: str) -> list[tuple[int, ...]]:
    """The shapes of all arrays in a type; of a type without arrays, that of a scalar."""
    return [tuple(int(n) for n in shape.split(",") if n) for _, shape, _ in ARRAY.findall(text)] or [()]


def kind_of(text: str) -> str:
    """The type of the elements of the first array in a type."""
    match = ARRAY.search(text)
    return match[1] if match else "f32"
