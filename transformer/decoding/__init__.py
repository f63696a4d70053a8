"""Decoding: sampling, beam search and speculative decoding behind the `Stepper` protocol."""
