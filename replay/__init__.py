"""From segments to producer state: the fold, its mergeable summary, the window, and the Spark job that runs them."""
