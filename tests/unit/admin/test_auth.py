"""Users and access lists through the admin functions: who gets a change, and what becomes of the answers."""

from __future__ import annotations

import pytest
from tests.unit.admin.scripted import SLAVE, A, B, Scripted

from orbitmq.admin import auth
from orbitmq.admin.auth import AclInfo, PolicyInfo, UserInfo
from orbitmq.codes import ResponseCode
from orbitmq.errors import BrokerError
from orbitmq.requests import RequestCode
from orbitmq.wire.javajson import encode

GET, LIST = RequestCode.AUTH_GET_USER, RequestCode.AUTH_LIST_USER
CREATE, UPDATE = RequestCode.AUTH_CREATE_USER, RequestCode.AUTH_UPDATE_USER
BOB = UserInfo(username="bob", password="p", user_type="Super", user_status="disable")


@pytest.fixture
def admin() -> Scripted:
    return Scripted()


@pytest.mark.parametrize(("create", "code"), [(True, CREATE), (False, UPDATE)])
def test_user_is_stored_on_masters_and_slaves(admin: Scripted, create: bool, code: int) -> None:
    admin.run(auth.store_user(admin, BOB, create=create, broker=None, cluster="C"))
    assert {asked.address for asked in admin.of(code)} == {A, SLAVE, B}
    for asked in admin.of(code):
        assert asked.fields == {"username": "bob"}
        assert UserInfo.decode(asked.body) == BOB


def test_user_is_deleted_on_masters_and_slaves(admin: Scripted) -> None:
    admin.run(auth.delete_user(admin, "bob", broker=None, cluster="C"))
    asked = admin.of(RequestCode.AUTH_DELETE_USER)
    assert {(one.address, one.fields["username"]) for one in asked} == {
        (A, "bob"),
        (SLAVE, "bob"),
        (B, "bob"),
    }


@pytest.mark.parametrize("answer", [b"", int(ResponseCode.USER_NOT_EXIST)])
def test_unknown_user_is_nobody_in_every_form_of_the_answer(admin: Scripted, answer: bytes | int) -> None:
    admin.answers[GET] = lambda _: answer
    assert admin.run(auth.users(admin, broker=None, cluster="C", username="bob")).users == []


def test_other_refusal_is_not_taken_for_an_unknown_user(admin: Scripted) -> None:
    admin.answers[GET] = lambda _: int(ResponseCode.NO_PERMISSION)
    with pytest.raises(BrokerError):
        admin.run(auth.users(admin, broker=None, cluster="C", username="bob"))


def test_users_are_listed_by_master_with_empty_texts_for_what_is_missing(admin: Scripted) -> None:
    admin.answers[LIST] = lambda asked: encode([BOB] if asked.address == A else [UserInfo(username="eve")])
    found = admin.run(auth.users(admin, broker=None, cluster="C", pattern="e")).users
    assert [(one.username, one.user_type, one.password) for one in found] == [
        ("bob", "Super", "p"),
        ("eve", "", ""),
    ]
    assert {asked.fields["filter"] for asked in admin.of(LIST)} == {"e"}


def test_copied_users_are_created_or_changed_at_their_goal(admin: Scripted) -> None:
    eve = UserInfo(username="eve", password="q")
    admin.answers[LIST] = lambda _: encode([BOB, eve])
    admin.answers[GET] = lambda asked: (
        BOB.encode() if asked.fields["username"] == "bob" else int(ResponseCode.USER_NOT_EXIST)
    )
    done = admin.run(auth.copy_users(admin, A, B))
    assert [one.action for one in done.changes] == ["user bob changed", "user eve created"]
    for code, info in ((UPDATE, BOB), (CREATE, eve)):
        [asked] = admin.of(code)
        assert (asked.address, UserInfo.decode(asked.body)) == (B, info)


RULE = auth.policy_of("User:bob", ["Topic:a", "Topic:b"], ["Pub"], "Deny", ["10.0.0.0/8"])


def test_rule_has_an_entry_for_each_resource(admin: Scripted) -> None:
    admin.run(auth.store_acl(admin, RULE, create=True, broker=None, cluster="C"))
    asked = admin.of(RequestCode.AUTH_CREATE_ACL)
    assert {one.address for one in asked} == {A, SLAVE, B}
    info = AclInfo.decode(asked[0].body)
    [policy] = info.policies or []
    entries = policy.entries or []
    assert [(one.resource, one.actions, one.decision, one.source_ips) for one in entries] == [
        ("Topic:a", ["Pub"], "Deny", ["10.0.0.0/8"]),
        ("Topic:b", ["Pub"], "Deny", ["10.0.0.0/8"]),
    ]


def test_subject_without_entries_is_still_listed(admin: Scripted) -> None:
    empty = AclInfo(subject="User:eve", policies=[PolicyInfo(entries=None)])
    admin.answers[RequestCode.AUTH_LIST_ACL] = lambda asked: (
        encode([RULE, empty]) if asked.address == A else b""
    )
    found = admin.run(auth.acls(admin, broker=None, cluster="C", resource_filter="Topic")).acls
    assert [(one.subject, one.resource) for one in found] == [
        ("User:bob", "Topic:a"),
        ("User:bob", "Topic:b"),
        ("User:eve", ""),
    ]
    assert admin.of(RequestCode.AUTH_LIST_ACL)[0].fields == {"resourceFilter": "Topic"}


def test_rules_are_deleted_for_one_resource_or_for_all(admin: Scripted) -> None:
    admin.run(auth.delete_acl(admin, "User:bob", "Topic:a", broker=A, cluster=None))
    admin.run(auth.delete_acl(admin, "User:bob", None, broker=A, cluster=None))
    assert [asked.fields for asked in admin.of(RequestCode.AUTH_DELETE_ACL)] == [
        {"subject": "User:bob", "resource": "Topic:a"},
        {"subject": "User:bob"},
    ]


def test_copied_rules_are_created_or_changed_at_their_goal(admin: Scripted) -> None:
    admin.answers[RequestCode.AUTH_GET_ACL] = lambda asked: (
        RULE.encode() if asked.address == A else int(ResponseCode.POLICY_NOT_EXIST)
    )
    done = admin.run(auth.copy_acls(admin, A, B, ["User:bob"]))
    assert [one.action for one in done.changes] == ["access list of User:bob created"]
    [asked] = admin.of(RequestCode.AUTH_CREATE_ACL)
    assert asked.address == B
