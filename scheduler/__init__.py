"""The edges: settings, the service layer, and the command line."""
