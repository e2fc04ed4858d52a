"""The key index: files, the hashes that enter them, and the service that keeps them."""
