"""Corpora that need no file: text of the Python installation, and generated pairs."""
