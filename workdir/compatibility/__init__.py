"""Agreement of a run with its config, its data, other processes and this code."""
