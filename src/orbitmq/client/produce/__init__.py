"""Producers: sends, batches, transactions, requests with a reply."""
