"""Who may do what: roles, tokens, sessions, places that may be named, and the audit. Knows nothing of HTTP."""
