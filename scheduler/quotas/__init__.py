"""`resnap quota`: quotas of users, and what they would have done to a log."""
