"""Producers: sends, batches, transactions, and requests with a reply."""
