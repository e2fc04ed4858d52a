"""Values and rules that servers and clients share: names, topics, groups, routes, subscriptions, rebalance. No
I/O."""
