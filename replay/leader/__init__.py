"""A partition leader's producer state: which appends it accepts, and what it keeps."""
