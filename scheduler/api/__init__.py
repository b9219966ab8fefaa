"""The HTTP API, ``/v1``, over the one service layer."""
