"""Connections, servers and calls over asyncio. Knows frames and routes, nothing of brokers or stores."""
