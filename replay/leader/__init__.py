"""A partition leader's side of producer state: what it accepts of an append, and what it keeps; and scripts of it."""
