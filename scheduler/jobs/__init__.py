"""The verbs of Resnap, one module each: what is asked for, the run, and how its results are shown (see ``job``)."""
