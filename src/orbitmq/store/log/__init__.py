"""The commit log: segments of one size, and the ranges that recovery skipped."""
