"""``orbitmq completion``: shell completion of commands, options, and names of topics, groups and brokers."""

from __future__ import annotations

import click

__all__ = ["completion_command"]


@click.command("completion", short_help="Print what makes a shell complete commands, flags and names.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_command(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash: eval "$(orbitmq completion bash)"
    zsh:  eval "$(orbitmq completion zsh)"
    fish: orbitmq completion fish | source
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, "the choices are those click has"
    root = click.get_current_context().find_root()
    click.echo(kind(root.command, {}, "orbitmq", "_ORBITMQ_COMPLETE").source())
