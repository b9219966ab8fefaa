"""The layout ``aiven``: objects as Aiven's RemoteStorageManager plugin reads and writes them."""
