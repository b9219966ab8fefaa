"""How producer ids come into the world, age and die: the controller's side, on real metadata logs."""
