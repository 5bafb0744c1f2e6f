"""docs/commands.md says what the commands say of themselves: every command, its usage, every option with its help."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from crawl_pipeline.cli import main
from crawl_pipeline.domain.outcomes import Reason

DOC = (Path(__file__).parents[2] / "docs" / "commands.md").read_text(encoding="utf-8")


def commands(command: click.Command, path: str = "crawl-pipeline") -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, with the words that call it."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    with click.Context(command) as context:
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands(found, f"{path} {name}")


COMMANDS = dict(commands(main))


def section(path: str) -> str:
    """The part of the document under a command's own heading."""
    match = re.search(rf"^## {re.escape(path)}\n(.*?)(?=^## |\Z)", DOC, re.DOTALL | re.MULTILINE)
    assert match is not None, f"docs/commands.md has no heading ## {path}"
    return match[1]


def usage(path: str, command: click.Command) -> str:
    """The usage line of `--help`."""
    with click.Context(command, info_name=path) as context:
        return " ".join([path, *command.collect_usage_pieces(context)])


def options(command: click.Command) -> list[str]:
    """The lines that describe a command's options."""
    found = [option for option in command.params if isinstance(option, click.Option) and not option.hidden]
    return [f"- `{', '.join([*option.opts, *option.secondary_opts])}`: {option.help}" for option in found]


@pytest.mark.parametrize("path", COMMANDS)
def test_a_command_is_documented_as_its_help_says(path: str) -> None:
    text = section(path)
    assert f"`{usage(path, COMMANDS[path])}`" in text
    assert [line for line in text.splitlines() if line.startswith("- `-")] == options(COMMANDS[path])


def test_commands_are_documented_in_the_order_of_the_help_and_no_others() -> None:
    assert re.findall(r"^## (crawl-pipeline.*)$", DOC, re.MULTILINE) == list(COMMANDS)


def test_the_sample_of_json_is_json_and_has_the_promised_keys() -> None:
    (sample,) = re.findall(r"```json\n(.*?)```", section("crawl-pipeline status"), re.DOTALL)
    keys = ["source", "crawl_id", "state", "stop_reason", "urls", "records", "page_versions", "requests"]
    assert list(json.loads(sample))[: len(keys)] == keys


@pytest.mark.parametrize("key", ["requests_per_record", "records_by_type", "holds", "freshness", "paused_at", "now"])
def test_every_key_of_status_is_explained(key: str) -> None:
    assert f"`{key}`" in section("crawl-pipeline status")


def test_every_reason_of_quarantine_is_explained() -> None:
    text = section("crawl-pipeline quarantine release")
    for reason in (Reason.TRIES_EXHAUSTED, Reason.POISON, Reason.TIMEOUT, Reason.KEY_CONFLICT, "held_removals"):
        assert f"`{reason}`" in text
