"""The HTTP API ``/v1``: routes over the service layer, authentication, responses and errors."""
