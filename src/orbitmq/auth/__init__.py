"""Access control: signatures, users, policies, access lists of 4.x."""
