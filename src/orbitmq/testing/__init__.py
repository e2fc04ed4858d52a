"""Test support for users: a broker, a clock that can be moved, and a disk that fails. No other part of the package
imports it."""

from __future__ import annotations

from orbitmq.testing.chaos_proxy import ChaosProxy
from orbitmq.testing.messages import message
from orbitmq.testing.run_broker import RunningBroker, run_broker

__all__ = ["ChaosProxy", "RunningBroker", "message", "run_broker"]
