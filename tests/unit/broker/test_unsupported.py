"""Every request code is served, or refused with a reason."""

from __future__ import annotations

import asyncio
from pathlib import Path

from orbitmq.broker.broker import Broker
from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.unsupported import UNSUPPORTED, unserved
from orbitmq.codes import RequestCode
from orbitmq.store.config import StoreConfig


def routed(tmp_path: Path) -> set[int]:
    async def run() -> set[int]:
        config = BrokerConfig(public_host="127.0.0.1", bind_host="127.0.0.1", listen_port=0)
        async with Broker(config, StoreConfig(root=str(tmp_path / "store"))) as broker:
            return {route.code for route in broker.main_router.routes}

    return asyncio.run(run())


def test_every_code_is_routed_or_listed_and_none_is_both(tmp_path: Path) -> None:
    served = routed(tmp_path)
    names = {code: code.name for code in RequestCode}
    forgotten = [name for code, name in names.items() if code not in served and code not in UNSUPPORTED]
    assert not forgotten, f"neither routed nor in broker/unsupported.py: {forgotten}"
    stale = [names[RequestCode(code)] for code in UNSUPPORTED if code in served]
    assert not stale, f"served by now, so remove from broker/unsupported.py: {stale}"


def test_reasons_are_sentences_for_people() -> None:
    for code, reason in UNSUPPORTED.items():
        assert RequestCode(code)
        assert len(reason) > 20
        assert not reason.endswith(".")


def test_reasons_are_not_given_for_codes_with_a_route() -> None:
    assert RequestCode.POP_MESSAGE not in unserved([RequestCode.POP_MESSAGE])
    assert unserved([]) == dict(UNSUPPORTED)
