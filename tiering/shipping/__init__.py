"""Ships segments to a store: what is left to ship, the files of each segment, their place, and the copy itself."""
