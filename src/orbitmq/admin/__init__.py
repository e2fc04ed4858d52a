"""Typed functions that query and change a cluster. ``orbitmq admin`` prints their results.

Open an ``Admin`` and pass it to a function of an area::

    async with Admin("127.0.0.1:9876") as admin:
        status = await topics.topic_status(admin, "orders")

Works with this project's servers and with Apache's, 4.9 and 5.x. Corresponds to Apache's ``DefaultMQAdminExt``.
"""

from orbitmq.admin.base import Result
from orbitmq.admin.errors import (
    AdminError,
    NoNameServerError,
    PartlyDoneError,
    UnknownNameError,
    UnreachableError,
)
from orbitmq.admin.session import Admin, AdminOptions

__all__ = [
    "Admin",
    "AdminError",
    "AdminOptions",
    "NoNameServerError",
    "PartlyDoneError",
    "Result",
    "UnknownNameError",
    "UnreachableError",
]
