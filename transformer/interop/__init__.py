"""Models of Hugging Face transformers, in and out: one table of keys and tensors per family."""

from transformer.interop.family import Family
from transformer.interop.gpt2 import GPT2

FAMILIES: dict[str, Family] = {family.model_type: family for family in (GPT2,)}
"""`model_type` in config.json -> family. Of several that can express a model the first is exported."""
