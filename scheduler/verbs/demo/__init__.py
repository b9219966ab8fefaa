"""`resnap demo`: a log loses its producer snapshots, and gets them back."""
