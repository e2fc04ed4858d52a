"""A user with almost no rights against every request: the data she is served, and what changes in the store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.integration.rights_kit import scene
from tests.unit.auth.test_needs import BODIES, FACTS

from orbitmq.auth.acl_files import ADMIN_CODES
from orbitmq.auth.needs import ROWS, Asked, Row
from orbitmq.errors import NoPermission
from orbitmq.requests import BY_CODE, RequestCode

DESTRUCTIVE = {
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
    RequestCode.AUTH_DELETE_USER,
    RequestCode.DELETE_ACL_CONFIG,
}
"""Last, since they take away what others are tried on."""

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("is_4x", [False, True], ids=["policies", "lists"])
def test_eve_reads_and_changes_nothing_of_others_with_any_request(tmp_path: Path, is_4x: bool) -> None:
    async def run() -> tuple[list[str], int]:
        async with scene(tmp_path, is_4x=is_4x) as attacked:
            return await attacked.attack(list(BY_CODE)), attacked.attempts

    wrong, attempts = asyncio.run(run())
    assert wrong == []
    assert attempts > 10_000


def test_every_request_whose_body_names_its_objects_has_an_example_to_attack_with() -> None:
    def reads_body(row: Row) -> bool:
        try:
            list(row(Asked({}, b"", FACTS)))
        except NoPermission:
            return True
        return False

    assert {code for code, row in ROWS.items() if reads_body(row)} <= set(BODIES)


@pytest.mark.parametrize("is_4x", [False, True], ids=["policies", "lists"])
def test_missing_check_of_any_request_is_found(tmp_path: Path, is_4x: bool) -> None:
    """Removes each row of the table of rights in turn."""

    async def run() -> list[str]:
        async with scene(tmp_path, is_4x=is_4x) as attacked:
            served = {int(route.code) for route in attacked.broker.main_router.routes}
            missed = []
            checked = (served & set(BY_CODE)) - (ADMIN_CODES if is_4x else set())
            for code in sorted(checked, key=lambda code: (code in DESTRUCTIVE, code)):
                with pytest.MonkeyPatch.context() as patch:
                    patch.setitem(ROWS, code, lambda _asked: ())
                    if not await attacked.attack([code], only_first=True):
                        missed.append(BY_CODE[code].name)
            return missed

    missed = asyncio.run(run())
    assert missed == [], ", ".join(missed)
