"""Whole models, composed of layers."""
