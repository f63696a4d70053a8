"""Training: step, loop, state, optimizers and checkpoints, for any experiment."""
