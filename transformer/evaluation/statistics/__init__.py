"""Statistics of runs and of samples."""
