"""Tokenizers, trained or read from files."""
