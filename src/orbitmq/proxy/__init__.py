"""gRPC in front of brokers: what official 5.x clients speak."""
