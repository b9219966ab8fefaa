"""Tiering: inventory, eligibility, planning, shipping, verification, repair and installation of snapshots."""
