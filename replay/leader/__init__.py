"""A partition leader's producer state: which appends it accepts, what it keeps, and scripted simulations of it."""
