"""The run cache: results of earlier runs, so that later ones need not read the same segments again."""
