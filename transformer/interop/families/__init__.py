"""Families of published models: a table of names and keys each."""
