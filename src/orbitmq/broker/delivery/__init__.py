"""The path of a checked message to its consumers: parking, delays, timers, transactions, waiting pulls."""
