"""The key index: its files, the hashes stored in them, and the service that maintains them."""
