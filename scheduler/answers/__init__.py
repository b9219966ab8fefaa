"""How results are told: as rows, as tables or JSON, as progress, as errors, and never with a secret in them."""
