"""Objects as the RemoteStorageManager plugin that most clusters run reads and writes them."""
