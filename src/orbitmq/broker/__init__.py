"""The broker: stores what producers send, serves what consumers pull, keeps their offsets."""
