"""Connections, servers and calls over asyncio. This package knows frames and routes, but not brokers or stores."""
