"""Sans-IO protocol: bytes in, values out. Nothing here touches a socket or a clock."""
