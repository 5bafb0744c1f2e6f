"""`crawl-pipeline sources`: contracts, and pausing what they ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from crawl_pipeline.cli.output import ago, count_of, print_json, print_table
from crawl_pipeline.cli.session import Session, load_contracts, note, opened, settings_now
from crawl_pipeline.errors import ContractError, ContractErrors
from crawl_pipeline.storage import pauses, reports

if TYPE_CHECKING:
    from crawl_pipeline.pipeline.contract_files import LoadedContract


@click.group()
def sources() -> None:
    """Check and list contracts; pause and resume sources."""


@sources.command()
@click.argument("files", metavar="[FILE]...", nargs=-1, type=click.Path(path_type=Path))
def check(files: tuple[Path, ...]) -> None:
    """Check contracts: those named, or all of the folders of CRAWL_SOURCES.

    Prints every fault and exits with 2 if there is one. Warnings are about limits that contradict each other.
    """
    from crawl_pipeline.pipeline.contract_files import warnings

    loaded = _read(files) if files else load_contracts(settings_now())
    for contract in loaded.values():
        for warning in warnings(contract.contract):
            click.echo(f"{contract.file}: warning: {warning}")
    if not loaded:
        click.echo("no contracts; put one into a folder of CRAWL_SOURCES")
        return
    click.echo(f"{count_of(len(loaded), 'contract')} valid: {', '.join(loaded)}")


def _read(files: Sequence[Path]) -> dict[str, LoadedContract]:
    from crawl_pipeline.parsing.extraction import check_selector
    from crawl_pipeline.pipeline.contract_files import read_contract

    loaded: dict[str, LoadedContract] = {}
    errors: list[ContractError] = []
    for file in files:
        try:
            found = read_contract(file, check_selector)
        except ContractError as error:
            errors.append(error)
        else:
            loaded[found.contract.source] = found
    if errors:
        raise ContractErrors(errors)
    return loaded


@sources.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON with stable keys.")
def list_(as_json: bool) -> None:
    """List sources: those with a contract file, and those that the database knows."""
    with opened() as session, reports.snapshot(session.database) as connection:
        known = {source.source: source for source in reports.all_sources(connection)}
        now = reports.now(connection)
        files: Mapping[str, LoadedContract] = {}
        try:
            files = session.contracts
        except ContractErrors as error:
            faulty = count_of(len(error.errors), "contract file")
            note(f"{faulty} faulty, so that none is listed: crawl-pipeline sources check")
    found = [_listed(name, files.get(name), known.get(name)) for name in sorted({*files, *known})]
    if as_json:
        print_json(found)
        return
    if not found:
        click.echo("no sources yet; put a contract into a folder of CRAWL_SOURCES")
        return
    headers = ["source", "state", "in force", "owner", "description", "file"]
    rows = [
        [
            one["source"],
            _state(known.get(name), files.get(name)),
            ago(known[name].in_force_since, now) if name in known else "-",
            one["owner"],
            one["description"],
            one["file"],
        ]
        for one in found
        for name in [str(one["source"])]
    ]
    print_table(headers, rows)


def _listed(name: str, loaded: LoadedContract | None, known: reports.KnownSource | None) -> dict[str, object]:
    return {
        "source": name,
        "description": loaded.contract.description if loaded else None,
        "owner": loaded.contract.owner if loaded else None,
        "file": str(loaded.file) if loaded else known.contract_file if known else None,
        "has_file": loaded is not None,
        "contract_version": loaded.contract.version if loaded else None,
        "version_in_force": known.contract_version if known else None,
        "in_force_since": known.in_force_since if known else None,
        "paused_at": known.paused_at if known else None,
    }


def _state(known: reports.KnownSource | None, loaded: LoadedContract | None) -> str:
    if known is None:
        return "new"
    if known.paused_at is not None:
        return "paused"
    if loaded is None:
        return "no file"
    return "active" if loaded.contract.version == known.contract_version else "changed"


@sources.command()
@click.argument("source")
def pause(source: str) -> None:
    """Pause a source: no schedule starts it, and what it asks of hosts counts no more."""
    with opened() as session:
        _set_paused(session, source, True)


@sources.command()
@click.argument("source")
def resume(source: str) -> None:
    """End the pause of a source."""
    with opened() as session:
        _set_paused(session, source, False)


def _set_paused(session: Session, source: str, is_paused: bool) -> None:
    with reports.snapshot(session.database) as connection:
        known = session.source(connection, source)
    if known is not None:
        source_id = known.source_id
    else:
        from crawl_pipeline.pipeline.crawl import sync_source

        source_id = sync_source(session.database, session.contracts[source])
    if pauses.set_paused(session.database, source_id, is_paused):
        click.echo(f"{source} is {'paused' if is_paused else 'resumed'}")
    else:
        click.echo(f"{source} {'was paused already' if is_paused else 'was not paused'}")
