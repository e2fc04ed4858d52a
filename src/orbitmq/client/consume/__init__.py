"""Consumers: push, pull and lite pull consumers, rebalancing, offsets and retries."""
