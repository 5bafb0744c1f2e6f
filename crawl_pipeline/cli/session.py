"""What a command works with: the settings, the database and the contracts, each opened when it is first needed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import click
import sqlalchemy as sa

from crawl_pipeline.cli.output import count_of
from crawl_pipeline.errors import ContractError, ContractErrors, UnknownSource
from crawl_pipeline.settings import Settings
from crawl_pipeline.storage import reports
from crawl_pipeline.storage.database import Database
from crawl_pipeline.storage.opening import open_database

if TYPE_CHECKING:
    from crawl_pipeline.domain.contract import Contract
    from crawl_pipeline.pipeline.contract_files import LoadedContract


class Session:
    """One command's settings, database and contracts."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self.settings = settings
        self.database = database

    @cached_property
    def contracts(self) -> Mapping[str, LoadedContract]:
        """The contracts of the folders. Raises ContractErrors with every fault."""
        return load_contracts(self.settings)

    def source(self, connection: sa.Connection, name: str) -> reports.KnownSource | None:
        """A source that the database knows; None where only a contract file does. Raises UnknownSource."""
        found = reports.find_source(connection, name)
        if found is None and name not in self.contracts:
            known = {source.source for source in reports.all_sources(connection)} | set(self.contracts)
            raise UnknownSource(name, sorted(known))
        return found

    def contract(self, known: reports.KnownSource | None, name: str) -> Contract:
        """The contract as its file says now; where there is no valid file, the one that is in force."""
        from crawl_pipeline.domain.contract import Contract

        if known is None:
            return self.contracts[name].contract
        try:
            loaded = self.contracts.get(name)
        except ContractErrors as error:
            faulty = count_of(len(error.errors), "contract file")
            note(f"{faulty} faulty (crawl-pipeline sources check); using the contract in force")
            loaded = None
        if loaded is not None:
            return loaded.contract
        try:
            return Contract.from_json(known.contract)
        except ContractError as error:
            raise ContractError(f"{name} (the contract in force, of {known.contract_file})", error.faults) from error


def load_contracts(settings: Settings) -> Mapping[str, LoadedContract]:
    """The contracts of the folders of CRAWL_SOURCES. Raises ContractErrors with every fault."""
    from crawl_pipeline.parsing.extraction import check_selector
    from crawl_pipeline.pipeline import contract_files

    return contract_files.load_contracts(settings.source_folders, check_selector)


def settings_now() -> Settings:
    """What the environment and the working directory say."""
    return Settings.from_environment(os.environ, Path.cwd())


@contextmanager
def opened() -> Iterator[Session]:
    """A session with the database open. Raises UsageError, DatabaseUnavailable or SchemaMismatch."""
    settings = settings_now()
    database = open_database(settings)
    try:
        yield Session(settings, database)
    finally:
        database.close()


def note(sentence: str) -> None:
    """Say something beside the answer: on stderr, so that what is read by programs stays clean."""
    click.echo(f"note: {sentence}", err=True)
