"""The entries under "Needs attention" on the overview."""

from __future__ import annotations

from orbitmq.console.pages.overview import needs_attention
from orbitmq.console.sampler import GroupSample, Snapshot

NOW_MS = 10_000_000


def test_overview_of_an_empty_cluster_lists_nothing() -> None:
    groups = {"idle": GroupSample("idle", dead=0), "unknown": GroupSample("unknown")}
    assert needs_attention(Snapshot(at_ms=NOW_MS, groups=groups), NOW_MS) == []


def test_dead_letters_need_attention_with_the_most_first() -> None:
    groups = {"a": GroupSample("a", dead=1), "b": GroupSample("b", dead=1200), "c": GroupSample("c", dead=0)}
    assert needs_attention(Snapshot(at_ms=NOW_MS, groups=groups), NOW_MS) == [
        "group b has 1,200 dead letters to resend or drop",
        "group a has 1 dead letter to resend or drop",
    ]


def test_members_that_finish_nothing_need_attention() -> None:
    stalled = {"billing": ["m-1 orders/broker-a/0 holds 3 messages and finished none for 2 min"]}
    assert needs_attention(Snapshot(at_ms=NOW_MS, stalled=stalled), NOW_MS) == [
        "group billing: m-1 orders/broker-a/0 holds 3 messages and finished none for 2 min"
    ]
