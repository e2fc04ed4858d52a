"""POP consuming: messages are handed out for a limited time, acknowledged one by one, and otherwise redelivered."""
