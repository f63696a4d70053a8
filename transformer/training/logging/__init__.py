"""Writers of metrics, experiment trackers, throughput and profiles."""
