"""What becomes of shipped segments: retention, the removal of what no manifest names, and the way back."""
