"""The contracts that this process's settings name."""

from __future__ import annotations

from crawl_pipeline.errors import UnknownSource
from crawl_pipeline.parsing.extraction import check_selector
from crawl_pipeline.pipeline.contract_files import LoadedContract, load_contracts
from crawl_pipeline.settings import Settings


def contracts(settings: Settings) -> dict[str, LoadedContract]:
    """Every contract by its source. Raises ContractErrors with all faults of all files."""
    return load_contracts(settings.source_folders, check_selector=check_selector)


def contract_of(settings: Settings, source: str) -> LoadedContract:
    """The contract of one source. Raises ContractErrors, or UnknownSource with the sources that there are."""
    known = contracts(settings)
    if source not in known:
        raise UnknownSource(source, sorted(known))
    return known[source]
