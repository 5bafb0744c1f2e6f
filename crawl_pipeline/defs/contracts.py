"""The contracts that this process's settings name. One team's faulty file does not stop another team's source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from crawl_pipeline.domain.contract import Contract
from crawl_pipeline.errors import ContractErrors, UnknownSource
from crawl_pipeline.parsing.selectors import check_selector
from crawl_pipeline.pipeline.contract_files import LoadedContract, read_contracts
from crawl_pipeline.settings import Settings
from crawl_pipeline.storage import reports
from crawl_pipeline.storage.database import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class Contracts:
    """The valid contracts by source, and every fault of the others."""

    valid: Mapping[str, LoadedContract]
    faults: ContractErrors | None


def contracts(settings: Settings) -> Contracts:
    """Read all contracts."""
    valid, errors = read_contracts(settings.source_folders, check_selector)
    return Contracts(valid=valid, faults=ContractErrors(errors) if errors else None)


def contract_of(settings: Settings, source: str) -> LoadedContract:
    """The contract of one source. Raises UnknownSource with the sources that there are, or ContractErrors when the
    source may be in a faulty file.
    """
    known = contracts(settings)
    if source in known.valid:
        return known.valid[source]
    if known.faults is not None:
        raise known.faults
    raise UnknownSource(source, sorted(known.valid))


def contract_in_force(settings: Settings, database: Database, source: str) -> LoadedContract:
    """The contract that a run goes by: the source's file, or the last good one where its file is faulty now or it never
    had one. Raises as `contract_of` does, and ContractError where the one kept is no valid contract any more.
    """
    try:
        return contract_of(settings, source)
    except (ContractErrors, UnknownSource) as error:
        with reports.snapshot(database) as connection:
            known = reports.find_source(connection, source)
        if known is None or (known.contract_file is not None and isinstance(error, UnknownSource)):
            raise
    file = None if known.contract_file is None else Path(known.contract_file)
    return LoadedContract(contract=Contract.from_json(known.contract), file=file)
