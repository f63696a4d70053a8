"""Folders of models that hold more, or other, than one model of a known family."""
