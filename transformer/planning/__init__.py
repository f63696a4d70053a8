"""What a run will cost on hardware that is not there."""
