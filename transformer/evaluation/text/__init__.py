"""Metrics of texts against references."""
