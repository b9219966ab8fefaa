"""The HTTP API, ``/v1``, over the one service layer: who asks, what is answered, and how errors are reported."""
