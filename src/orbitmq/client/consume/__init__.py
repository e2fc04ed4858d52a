"""Consumers: push, pull, lite pull, rebalance, offsets, retries."""
