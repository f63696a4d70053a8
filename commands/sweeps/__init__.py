"""Sweeps: settings, processes that train, rows of runs and their comparison."""
