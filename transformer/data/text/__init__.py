"""Running text: packed rows and mixtures of sources."""
