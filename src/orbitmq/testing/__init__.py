"""What a test of a user may need: a clock to move, a disk that fails. Nothing in the package imports it."""
