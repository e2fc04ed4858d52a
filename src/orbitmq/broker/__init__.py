"""The broker: stores messages from producers, serves consumers' pulls, and keeps their offsets."""
