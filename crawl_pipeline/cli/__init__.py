"""The command line: the group `main`, whose commands are loaded when they are used, and what their errors look like.

A person's mistake is one sentence on stderr and exit 2; a broken machine one sentence and exit 1.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from crawl_pipeline.errors import CrawlError

# Name: what `--help` says of it. Each is a command of the same name in a module of the same name.
COMMANDS = {
    "crawl": "Crawl a source now, in the foreground.",
    "status": "Show the state of all sources, one source or one crawl.",
    "records": "Write the current records of a source.",
    "pages": "Write the current pages of a source or a crawl.",
    "explain": "Say what is known of a URL and why it is where it is.",
    "quarantine": "List what waits for a person, and release it.",
    "sources": "Check and list contracts; pause and resume sources.",
    "db": "Upgrade the crawl database; print its URL.",
    "dev": "Serve the Dagster UI with all it needs, until Ctrl-C.",
}


class LazyGroup(click.Group):
    """A group that imports a command's module only when that command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All commands, in the order of use."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now."""
        if cmd_name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(f"crawl_pipeline.cli.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def main(  # type: ignore[override]  # this one always ends the process, or raises in tests that ask for it
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command and exit with its code; errors for people are printed without a traceback."""
        if not standalone_mode:
            return super().main(args, prog_name, standalone_mode=False, **extra)
        try:
            code = super().main(args, prog_name, standalone_mode=False, **extra)
            sys.stdout.flush()
        except CrawlError as error:
            click.echo(f"crawl-pipeline: {error}", err=True)
            code = error.exit_code
        except click.ClickException as error:
            error.show()
            code = error.exit_code
        except (click.Abort, KeyboardInterrupt):
            code = 130
        except BrokenPipeError:
            # Whoever read our output has had enough. Python would complain once more when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 141
        sys.exit(code if isinstance(code, int) else 0)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="crawl-pipeline", prog_name="crawl-pipeline")
def main() -> None:
    """A durable, polite, idempotent web crawler that runs as a Dagster pipeline on Postgres."""
