"""The names of tokens that tokenizers learnt here have."""

END = "<|endoftext|>"
"""The token that ends every document."""

UNKNOWN = "\ufffd"
"""Unicode's replacement character, for unknown characters."""
