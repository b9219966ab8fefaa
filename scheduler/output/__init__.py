"""How results are shown: as rows, as tables or JSON, and as progress."""
