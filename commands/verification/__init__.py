"""What `--mode=verify` compares a run with: the same functions in float64, and plain forms of layers."""
