"""`resnap inspect`: any one file of a log dir or a store, shown as what it is."""
