"""One client on the network: connections, routes, name servers, request signatures."""
