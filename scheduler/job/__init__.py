"""What a verb is (``contract``), and what verbs share: selections, plans, engines, and how these are put together."""
