"""The contracts that this process's settings name. One team's faulty file does not stop another team's source."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from crawl_pipeline.errors import ContractError, ContractErrors, UnknownSource
from crawl_pipeline.parsing.selectors import check_selector
from crawl_pipeline.pipeline.contract_files import LoadedContract, load_contracts, read_contract
from crawl_pipeline.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Contracts:
    """The valid contracts by source, and every fault of the others."""

    valid: Mapping[str, LoadedContract]
    faults: ContractErrors | None


def contracts(settings: Settings) -> Contracts:
    """Read all contracts. A source that two files claim is in neither."""
    try:
        return Contracts(valid=load_contracts(settings.source_folders, check_selector), faults=None)
    except ContractErrors as error:
        return Contracts(valid=_valid_alone(settings), faults=error)


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


def _valid_alone(settings: Settings) -> dict[str, LoadedContract]:
    claims: dict[str, list[LoadedContract]] = defaultdict(list)
    for file in sorted({file.resolve() for folder in settings.source_folders for file in _files(folder)}):
        with suppress(ContractError):
            loaded = read_contract(file, check_selector)
            claims[loaded.contract.source].append(loaded)
    return {source: loaded[0] for source, loaded in claims.items() if len(loaded) == 1}


def _files(folder: Path) -> list[Path]:
    return [*folder.glob("*.yaml"), *folder.glob("*.yml")]
