"""Certificates created for a test, as the PEM files an operator would have."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True, slots=True)
class Certificates:
    authority: Path
    server: Path
    server_key: Path
    client: Path
    client_key: Path
    stranger: Path
    """An authority that signed none of the others."""


def make_certificates(folder: Path) -> Certificates:
    authority, stranger = trustme.CA(), trustme.CA()
    server, client = authority.issue_cert("127.0.0.1"), authority.issue_cert("client")
    made = Certificates(
        *(
            folder / name
            for name in ("ca.pem", "server.pem", "server.key", "client.pem", "client.key", "other.pem")
        )
    )
    authority.cert_pem.write_to_path(made.authority)
    stranger.cert_pem.write_to_path(made.stranger)
    server.cert_chain_pems[0].write_to_path(made.server)
    server.private_key_pem.write_to_path(made.server_key)
    client.cert_chain_pems[0].write_to_path(made.client)
    client.private_key_pem.write_to_path(made.client_key)
    return made
