"""Decoding: from a model that takes one token at a time to text."""
