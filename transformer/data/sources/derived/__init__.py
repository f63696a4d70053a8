"""Sources that are made from other sources."""
