"""The config keys of models."""
