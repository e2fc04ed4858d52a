"""POP consuming: messages handed out for a time, acknowledged one by one, redelivered if they were not."""
