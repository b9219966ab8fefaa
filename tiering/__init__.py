"""What a tiered partition needs and lacks: inventory, eligibility, upload, verification."""
