"""Any one file or object shown as what it is."""
