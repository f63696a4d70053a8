"""Recovery of runs: damaged checkpoints, and training that has diverged."""
