"""The gRPC front end for brokers, used by official 5.x clients."""
