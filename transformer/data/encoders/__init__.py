"""Rows for encoders: masked, labelled and with questions."""
