"""Transforms of models and parameters, applied where a config asks for them."""
