"""Users and access lists of the brokers (ACL 2.0)."""

from __future__ import annotations

from starlette.responses import Response

from orbitmq.admin import AdminError
from orbitmq.admin import auth as admin_auth
from orbitmq.console.pages.topics import summary
from orbitmq.console.settings import Role
from orbitmq.console.view import Action, Done, Form, Plan, View
from orbitmq.errors import OrbitError

__all__ = ["ACTIONS", "access"]

_ACTIONS = ("All", "Pub", "Sub", "Create", "Update", "Delete", "Get", "List")


async def access(view: View) -> Response:
    """Shows the users and access lists of a cluster."""
    snapshot = await view.console.sampler.ready()
    clusters = sorted({sample.place.cluster for sample in snapshot.brokers})
    cluster = view.query("cluster") or (clusters[0] if clusters else "")
    users, acls, error = [], [], ""
    if cluster:
        try:
            users = (await admin_auth.users(view.admin, broker=None, cluster=cluster)).users
            acls = (await admin_auth.acls(view.admin, broker=None, cluster=cluster)).acls
        except OrbitError as failure:
            error = str(failure)
    unique = {user.username: user for user in users}
    rules = {
        (rule.subject, rule.policy_type, rule.resource, rule.decision, tuple(rule.actions)): rule
        for rule in acls
    }
    return view.page(
        "access.html",
        clusters=clusters,
        cluster=cluster,
        users=[unique[name] for name in sorted(unique)],
        acls=[rules[key] for key in sorted(rules)],
        error=error,
        actions=_ACTIONS,
    )


async def _plan_user(view: View, form: Form) -> Plan:
    name, cluster = form.required("username", "the name"), form.required("cluster", "the cluster")
    kind = form.text("user_type") or "Normal"
    if kind not in ("Normal", "Super"):
        raise AdminError("a user is Normal or Super")
    known = (await admin_auth.users(view.admin, broker=None, cluster=cluster, username=name)).users
    verb = "Change" if known else "Create"
    if not known and not form.raw("password"):
        raise AdminError("a new user needs a password")
    return Plan(
        title=f"{verb} user {name}",
        lines=[
            f"{verb} the {kind} user {name} on every broker of cluster {cluster}"
            + (", with a new password." if form.raw("password") else ".")
        ],
        button=f"{verb} the user",
        danger=kind == "Super",
        back="/access",
    )


async def _user(view: View, form: Form) -> Done:
    name, cluster = form.text("username"), form.text("cluster")
    known = (await admin_auth.users(view.admin, broker=None, cluster=cluster, username=name)).users
    info = admin_auth.UserInfo(
        username=name,
        password=form.raw("password") or None,
        user_type=form.text("user_type") or "Normal",
        user_status=form.text("user_status") or "enable",
    )
    changed = await admin_auth.store_user(view.admin, info, create=not known, broker=None, cluster=cluster)
    return Done(text=f"User {name}: {summary(changed)}.", back="/access")


async def _plan_user_delete(view: View, form: Form) -> Plan:
    name = form.required("username", "the name")
    return Plan(
        title=f"Delete user {name}",
        lines=[
            f"Delete user {name} from every broker of cluster {form.text('cluster')}. Its clients lose access."
        ],
        button="Delete the user",
        danger=True,
        typed=name,
        back="/access",
    )


async def _user_delete(view: View, form: Form) -> Done:
    name = form.text("username")
    changed = await admin_auth.delete_user(view.admin, name, broker=None, cluster=form.text("cluster"))
    return Done(text=f"User {name}: {summary(changed)}.", back="/access")


def _rule(form: Form) -> tuple[str, list[str], list[str], str]:
    subject = form.required("subject", "the subject")
    if ":" not in subject:
        subject = f"User:{subject}"
    resources = [
        part.strip() for part in form.required("resource", "the resource").split(",") if part.strip()
    ]
    actions = form.many("actions") or ["All"]
    decision = form.text("decision") or "Allow"
    if decision not in ("Allow", "Deny") or any(action not in _ACTIONS for action in actions):
        raise AdminError("a rule allows or denies actions of the list")
    return subject, resources, actions, decision


async def _plan_rule(view: View, form: Form) -> Plan:
    subject, resources, actions, decision = _rule(form)
    return Plan(
        title=f"{decision} {subject}",
        lines=[
            f"{decision} {subject} to {', '.join(actions)} on {', '.join(resources)}"
            f" from {form.text('ips') or 'anywhere'}, on every broker of cluster {form.text('cluster')}."
        ],
        button="Store the rule",
        danger=True,
        back="/access",
    )


async def _store_rule(view: View, form: Form) -> Done:
    subject, resources, actions, decision = _rule(form)
    cluster = form.required("cluster", "the cluster")
    ips = [part.strip() for part in form.text("ips").split(",") if part.strip()]
    info = admin_auth.policy_of(subject, resources, actions, decision, ips or None)
    known = (await admin_auth.acls(view.admin, broker=None, cluster=cluster, subject=subject)).acls
    changed = await admin_auth.store_acl(view.admin, info, create=not known, broker=None, cluster=cluster)
    return Done(text=f"Rule of {subject}: {summary(changed)}.", back="/access")


async def _plan_rule_delete(view: View, form: Form) -> Plan:
    subject, resource = form.required("subject", "the subject"), form.text("resource")
    return Plan(
        title=f"Delete rules of {subject}",
        lines=[f"Delete the rules of {subject}" + (f" for {resource}." if resource else ".")],
        button="Delete",
        danger=True,
        back="/access",
    )


async def _rule_delete(view: View, form: Form) -> Done:
    subject, resource = form.text("subject"), form.text("resource")
    changed = await admin_auth.delete_acl(
        view.admin, subject, resource or None, broker=None, cluster=form.text("cluster")
    )
    return Done(text=f"Rules of {subject}: {summary(changed)}.", back="/access")


ACTIONS = {
    "user-store": Action(Role.ADMIN, _plan_user, _user),
    "user-delete": Action(Role.ADMIN, _plan_user_delete, _user_delete),
    "rule-store": Action(Role.ADMIN, _plan_rule, _store_rule),
    "rule-delete": Action(Role.ADMIN, _plan_rule_delete, _rule_delete),
}
