"""What folders of models hold besides one model of a known family."""
