"""The commit log: its segments, all of the same size, and the ranges that recovery skipped."""
