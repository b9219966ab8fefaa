"""What is done with shipped segments: retention, the removal of what no manifest names, and the way back."""
