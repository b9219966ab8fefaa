"""From the bytes of segments to what they say of each producer: header by header, side by side, in splits."""
