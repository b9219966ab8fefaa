"""What is known of a partition and its broker before anything is written: inventory, eligibility, refusals, plans."""
