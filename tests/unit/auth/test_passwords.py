"""Which clients receive passwords."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orbitmq.auth.infos import REPLICA
from orbitmq.auth.model import User
from orbitmq.auth.signature import ACCESS_KEY
from orbitmq.auth.table import AuthTable
from orbitmq.broker.handlers.auth import AuthHandlers


@pytest.mark.parametrize(
    ("signer", "fields", "is_told"),
    [
        ("inner", {REPLICA: "true"}, True),
        ("inner", {}, False),
        ("reader", {REPLICA: "true"}, False),
        ("", {REPLICA: "true", ACCESS_KEY: "inner"}, False),  # a whitelisted code is not authenticated
    ],
)
def test_passwords_are_for_slaves_with_the_inner_credentials(
    signer: str, fields: dict[str, str], is_told: bool
) -> None:
    table = AuthTable()
    table.store_user(User("app", "app-secret"))
    handlers = AuthHandlers(
        table=table,
        checked=True,
        signer_of=lambda _frame: signer,
        answers_passwords=False,
        inner_user="inner",
        on_change=lambda: None,
    )
    call = cast(Any, SimpleNamespace(frame=SimpleNamespace(ext_fields={"username": "app", **fields})))
    for answer in (handlers.user(call), handlers.list_users(call)):
        assert (b"app-secret" in answer.body) is is_told
        assert json.loads(answer.body)
