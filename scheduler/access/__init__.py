"""Access control: roles, tokens, sessions, allowed places, and the audit log. Independent of HTTP."""
