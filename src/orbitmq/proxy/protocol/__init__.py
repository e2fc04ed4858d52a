"""The protocol of 5.x clients as protobuf messages."""
