"""The jobs of Resnap, one module per verb: its request, its run, and the view of its results (see ``job``)."""
