"""Sans-IO protocol: bytes in, values out. Nothing in here touches a socket or a clock."""
