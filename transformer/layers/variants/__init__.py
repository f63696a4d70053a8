"""Variants of blocks: experts, skips, shared and added parameters."""
