"""LoRA adapters of the library PEFT, in and out."""
