"""Attention: masks, kernels, positions, patterns, caches."""
