"""Evaluators that `evaluate.also` adds to those of an experiment."""
