"""Who may send which request: signatures, users, policies, access lists of 4.x."""
