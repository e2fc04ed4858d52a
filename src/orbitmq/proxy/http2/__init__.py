"""A gRPC server over HTTP/2 on asyncio, limited to what message clients need."""
