"""Objectives that restore damaged text."""
