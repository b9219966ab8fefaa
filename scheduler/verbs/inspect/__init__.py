"""`resnap inspect`: shows any single file of a log dir or a store."""
