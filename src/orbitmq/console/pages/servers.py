"""Settings of brokers and name servers, shown with descriptions and changed at runtime."""

from __future__ import annotations

from starlette.responses import Response

from orbitmq.admin import AdminError
from orbitmq.admin.brokers import config_of, update_broker_config
from orbitmq.console.pages.topics import summary
from orbitmq.console.settings import Role
from orbitmq.console.view import Action, Done, Form, Plan, View, link, listing

__all__ = ["ACTIONS", "broker", "configuration"]

_SECRET = ("password", "secret", "accesskey", "token")


def _hidden(key: str, value: str) -> str:
    return "•••" if value and any(word in key.casefold() for word in _SECRET) else value


async def configuration(view: View) -> Response:
    """Shows the list of servers."""
    snapshot = await view.console.sampler.ready()
    return view.page("configuration.html", snapshot=snapshot, name_servers=view.admin.name_servers)


async def broker(view: View) -> Response:
    """Shows all settings and metrics of one broker."""
    address = view.name("address")
    meanings = view.console.settings.meanings
    config = await config_of(view.admin, address)
    rows = [(key, _hidden(key, value), meanings.get(key)) for key, value in sorted(config.items())]
    columns = {
        "key": lambda row: row[0].casefold(),
        "live": lambda row: not (row[2] is not None and row[2].live),
        "any": lambda row: f"{row[0]} {row[1]} {row[2].doc if row[2] else ''}",
    }
    found = listing(view, rows, columns, "key", "any")
    snapshot = await view.console.sampler.ready()
    sample = next((one for one in snapshot.brokers if one.place.address == address), None)
    return view.page("broker.html", address=address, list=found, sample=sample, editing=view.query("edit"))


async def _plan_set(view: View, form: Form) -> Plan:
    address, key = form.required("broker", "the broker"), form.required("key", "the option")
    config = await config_of(view.admin, address)
    if key not in config:
        raise AdminError(f"broker {address} has no option {key}")
    meaning = view.console.settings.meanings.get(key)
    lines = [f"Set {key} of the broker at {address}, now and for its next starts."]
    if meaning is not None:
        lines.append(meaning.doc)
        if not meaning.live:
            lines.append("A broker of this project takes it after a restart only.")
    return Plan(
        title=f"Change {key}",
        lines=lines,
        heads=("option", "now", "then"),
        rows=[(key, _hidden(key, config[key]), _hidden(key, form.text("value")))],
        button="Change it",
        danger=True,
        back=link("brokers", address),
        command=f"orbitmq admin updateBrokerConfig -b {address} -k {key} -v {form.text('value')}",
    )


async def _set(view: View, form: Form) -> Done:
    address, key = form.text("broker"), form.text("key")
    settings = {key: form.text("value")}
    changed = await update_broker_config(view.admin, settings, broker=address, cluster=None)
    return Done(text=f"{key}: {summary(changed)}.", back=link("brokers", address, q=key))


ACTIONS = {"config-set": Action(Role.ADMIN, _plan_set, _set)}
