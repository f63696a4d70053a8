"""Optimizers, schedules, and rules for parameters."""
