"""Folders of models in the formats of other programs: what they are, and what to do."""

from pathlib import Path

THEIRS = "transformers has the same model as config.json and *.safetensors"

KINDS = (
    (("adapter_config.json",), "it is a PEFT adapter, not a whole model; expected the model that it changes"),
    (
        ("*.gguf",),
        f"it has a GGUF file, for llama.cpp; {THEIRS}: AutoModelForCausalLM.from_pretrained(FOLDER, "
        "gguf_file=FILE).save_pretrained(NEW)",
    ),
    (
        ("params.json", "consolidated*.pth"),
        f"it is a model as Meta publishes it; {THEIRS}: take that folder, or run its "
        "convert_llama_weights_to_hf.py",
    ),
    (
        ("params.json",),
        f"it is a model as Mistral AI publishes it; {THEIRS}: take that folder, or run its "
        "convert_mistral_weights_to_hf.py",
    ),
)
"""Patterns of names that such a folder has, and the line on it."""


def explanation(folder: Path) -> str:
    """A line on a folder without a config.json, to follow a message; "" if it is not known."""
    for patterns, line in KINDS:
        if all(any(folder.glob(pattern)) for pattern in patterns):
            return f": {line}"
    return ""
