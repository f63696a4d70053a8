"""Layers of Transformers: small, pure Linen modules, independent of models, data and configs."""
