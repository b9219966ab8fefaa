"""Objects under keys of Resnap's own, each segment with a manifest."""
