"""The layout ``flat``: Resnap's own keys, and a manifest for each segment."""
