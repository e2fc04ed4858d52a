"""POP consuming: messages handed out for a time, acknowledged one by one, redelivered when nobody did."""
