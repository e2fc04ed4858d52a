"""The name server: which brokers live, and which of them hold which topic (Apache: the namesrv module)."""
