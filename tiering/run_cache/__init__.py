"""What earlier runs have found out, so that later ones need not read it again."""
