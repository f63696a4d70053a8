"""Encoders: one table each."""
