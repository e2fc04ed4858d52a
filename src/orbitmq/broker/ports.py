"""Binds the broker's ports. This happens before the store is opened, so that an address in use is reported
immediately."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from orbitmq.broker.config import BrokerConfig
from orbitmq.metrics.endpoint import bind_metrics
from orbitmq.transport.ports import bind_port, bind_port_and_fast_port

__all__ = ["BrokerPorts"]


@dataclass(frozen=True, slots=True)
class BrokerPorts:
    """The broker's bound sockets, which do not listen yet."""

    served: list[socket.socket]
    """The listen port, and the fast port if it is enabled."""
    ha: socket.socket
    metrics: socket.socket | None

    @classmethod
    def take(cls, config: BrokerConfig) -> BrokerPorts:
        """Bind all ports or none. Raises ``OSError``."""
        if config.fast_port_enabled:
            taken = list(bind_port_and_fast_port(config.bind_host, config.listen_port))
        else:
            taken = [bind_port(config.bind_host, config.listen_port)]
        served = list(taken)
        try:
            ha = _bind_ha(config, taken[0].getsockname()[1])
            taken.append(ha)
            wanted = config.metrics_exporter == "PROM"
            metrics = bind_metrics(config.metrics_host, config.metrics_port) if wanted else None
        except OSError:
            for bound in taken:
                bound.close()
            raise
        return cls(served, ha, metrics)

    @property
    def listen_port(self) -> int:
        return int(self.served[0].getsockname()[1])

    @property
    def ha_port(self) -> int:
        return int(self.ha.getsockname()[1])

    def close(self) -> None:
        """Close the sockets after a failed start."""
        for bound in (*self.served, self.ha, self.metrics):
            if bound is not None:
                bound.close()


def _bind_ha(config: BrokerConfig, port: int) -> socket.socket:
    try:
        return bind_port(config.bind_host, config.ha_listen_port or port + 1)
    except OSError:
        if config.listen_port or config.ha_listen_port:
            raise
        # No specific port was requested, so any port will do.
        return bind_port(config.bind_host, 0)
