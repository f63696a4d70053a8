"""The step, the loop and what they carry: for any experiment."""
