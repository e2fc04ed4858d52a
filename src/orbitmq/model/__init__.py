"""Values and rules both servers and clients share: names, topics, groups, routes, subscriptions, rebalance. Pure."""
