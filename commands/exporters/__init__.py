"""Formats of --mode=export."""
