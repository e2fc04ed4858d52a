"""Values and rules that servers and clients share: names, topics, groups, routes, subscriptions and rebalancing.

This package does no I/O.
"""
