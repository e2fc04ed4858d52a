"""A gRPC server over HTTP/2 on asyncio, as far as message clients need one."""
