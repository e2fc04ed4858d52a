"""Calls of ``topic`` and ``store`` in SQL become views, and nothing else changes."""

from __future__ import annotations

import pytest

from orbitmq.arrow.relations import find_relations
from orbitmq.errors import ConfigError


def test_calls_are_replaced_and_equal_calls_share_a_view() -> None:
    sql, found = find_relations(
        "SELECT topic, 'topic(''x'')' FROM topic('orders') a JOIN TOPIC ( 'orders' ) b USING (keys) "
        "JOIN store('backup', topic => 'orders', since => 1795089600000) c USING (keys)"
    )
    assert sql == (
        "SELECT topic, 'topic(''x'')' FROM orbitmq_relation_0 a JOIN orbitmq_relation_0 b USING (keys) "
        "JOIN orbitmq_relation_1 c USING (keys)"
    )
    assert [(one.kind, one.name, one.arguments) for one in found] == [
        ("topic", "orders", {}),
        ("store", "backup", {"topic": "orders", "since": 1795089600000}),
    ]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT topic FROM t -- topic('a')",
        "SELECT /* topic('a') */ 1",
        "SELECT \"topic('a')\"",
        "SELECT $$topic('a')$$",
        "SELECT main.topic('a')",
        "SELECT topic, count(*) FROM t GROUP BY topic",
        "SELECT 'it''s topic(''a'')'",
    ],
)
def test_strings_comments_names_and_columns_are_left_alone(sql: str) -> None:
    assert find_relations(sql) == (sql, [])


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        ("FROM topic(orders)", "begins with a name in single quotes"),
        ("FROM topic()", "begins with a name in single quotes"),
        ("FROM topic('a', 'b')", "NAME => LITERAL"),
        ("FROM topic('a', since => now())", "literals only"),
        ("FROM topic('a', sinse => 'x')", "no argument 'sinse'"),
        ("FROM topic('a', columns => 'x')", "no argument 'columns'"),
        ("FROM topic('a'", "literals only"),
        ("FROM topic(E'a')", "escapes"),
    ],
)
def test_wrong_arguments_are_refused_with_the_usage(sql: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        find_relations(sql)
