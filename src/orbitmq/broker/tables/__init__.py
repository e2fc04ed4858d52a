"""What the broker remembers: topics, groups, offsets, clients, queue locks, filters."""
