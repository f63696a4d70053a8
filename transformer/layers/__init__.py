"""The parts of a Transformer: small, pure Linen modules that know no model, no data and no config."""
