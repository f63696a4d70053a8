"""Data from files to batches: sources, tokenizers, packing, loading; NumPy only."""
