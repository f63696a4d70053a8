"""Base classes of several objectives."""
