"""The cost of a run on hardware that is not there."""
