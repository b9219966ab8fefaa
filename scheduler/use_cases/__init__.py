"""What Resnap does for somebody, one use case a module, under one service that shell and daemon share."""
