"""Reads and overwrites what a model computes, by the paths of its modules."""
