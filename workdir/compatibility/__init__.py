"""What a run needs to agree with: its config, its data, other processes, this code."""
