"""Parse, call, print, exit code: one module per command."""

from __future__ import annotations

import importlib
import os
import sys

import click

import tenure
from tenure.errors import TenureError

FAULT = 70  # EX_SOFTWARE: a fault of ours; never 1, which means a finding

# Command -> (module, one line of help). Modules are imported when their command runs.
COMMANDS = {
    "run": ("tenure.cli.run", "Run a script as python would, and say what held its memory."),
    "explain": ("tenure.cli.explain", "Say what held the memory and what would have changed it."),
    "diff": ("tenure.cli.diff", "Say what grew from one snapshot to another; budgets for CI."),
    "view": ("tenure.cli.view", "Write a page that shows a recording; no network, no server."),
    "tune": ("tenure.cli.tune", "Find the settings under which a run needs least memory."),
    "replay": ("tenure.cli.replay", "Replay a snapshot exactly, or under other settings."),
    "plan": ("tenure.cli.plan", "Find the least memory that a run's allocations fit into."),
    "check": ("tenure.cli.check", "Say which versions and settings hold here, and what clashes."),
    "demo": ("tenure.cli.demo", "Explain a recorded out-of-memory; needs no GPU and no file."),
}


class LazyGroup(click.Group):
    """Commands by name, each imported only when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, or None if there is none of the name."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[cmd_name][0])
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table of commands, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(tenure.__version__, prog_name="tenure")
def commands() -> None:
    """GPU memory of PyTorch: replay it, explain it, manage it.

    Record a snapshot with torch.cuda.memory._record_memory_history() before the first CUDA
    call and torch.cuda.memory._dump_snapshot("snapshot.pickle"), then: tenure explain
    snapshot.pickle

    Exit codes: 0 fine, 1 a finding, 2 usage, 3 bad input, 70 a fault of tenure itself.
    """


def main() -> None:
    """The `tenure` command: runs, prints errors as one line, and exits."""
    try:
        code = commands(prog_name="tenure", standalone_mode=False)
    except click.exceptions.Abort:
        code = 130
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except TenureError as error:
        click.echo(f"tenure: {' '.join(str(error).split())}", err=True)
        code = error.exit_code
    except BrokenPipeError:
        # The reader went away; nothing more can be said there, and closing must not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except MemoryError:
        click.echo("tenure: not enough memory on this machine for this file", err=True)
        code = 3
    except Exception as error:
        if os.environ.get("TENURE_DEBUG"):
            raise
        click.echo(
            f"tenure: a fault of tenure itself, please report it: {type(error).__name__}: {error} "
            "(TENURE_DEBUG=1 shows where)",
            err=True,
        )
        code = FAULT
    sys.exit(code if isinstance(code, int) else 0)
