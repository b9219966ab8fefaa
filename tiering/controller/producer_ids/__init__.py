"""How producer ids come into the world: blocks that a controller gives to brokers, and ids out of these."""
