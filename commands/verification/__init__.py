"""The comparison of a run with float64, of `--mode=verify`."""
