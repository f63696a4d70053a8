"""Checkpoints, warm starts and forks."""
