"""`resnap doctor`: is everything there that a run needs?"""
