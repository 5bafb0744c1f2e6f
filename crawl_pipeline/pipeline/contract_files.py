"""Contract files: the YAML of the folders of `CRAWL_SOURCES`, read and judged whole.

What a contract may say is `domain.contract`'s; here are files, lines, and one report of all faults.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from crawl_pipeline.domain.contract import CheckSelector, Contract, parse_contract
from crawl_pipeline.domain.contract_warnings import warnings as warnings  # re-exported: what `sources check` adds
from crawl_pipeline.errors import ContractError, ContractErrors, ContractFault, UsageError
from crawl_pipeline.pipeline.contract_yaml import YamlText

LARGEST_FILE = 1_000_000  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedContract:
    """A valid contract and where it was read; no file: it is the database's."""

    contract: Contract
    file: Path | None
    text: str = ""


def load_contracts(folders: Sequence[Path], check_selector: CheckSelector | None = None) -> dict[str, LoadedContract]:
    """As `read_contracts`. Raises ContractErrors with every fault of every file; then nothing is loaded."""
    valid, errors = read_contracts(folders, check_selector)
    if errors:
        raise ContractErrors(errors)
    return valid


def read_contracts(
    folders: Sequence[Path], check_selector: CheckSelector | None = None
) -> tuple[dict[str, LoadedContract], list[ContractError]]:
    """The valid contracts (`*.yaml`, `*.yml`) of the folders by source, in the order of folders and file names.

    Beside them, what is wrong with the others; a source that two files claim is not valid. `check_selector` judges CSS.
    """
    claims: dict[str, list[LoadedContract]] = {}
    errors: list[ContractError] = []
    for file in _files(folders, errors):
        try:
            found = read_contract(file, check_selector)
        except ContractError as error:
            errors.append(error)
            continue
        same = claims.setdefault(found.contract.source, [])
        if same:
            errors.append(_duplicate(found, same[0]))
        same.append(found)
    return {source: files[0] for source, files in claims.items() if len(files) == 1}, errors


def read_contract(file: Path, check_selector: CheckSelector | None = None) -> LoadedContract:
    """One contract file. Raises ContractError with every fault found in it, each with its line."""
    text = _text(file)
    yaml = YamlText(text)
    faults = list(yaml.faults)
    if yaml.is_readable:
        try:
            contract = parse_contract(yaml.data, file=str(file), check_selector=check_selector)
        except ContractError as error:
            faults += [replace(fault, line=yaml.line(fault.path)) for fault in error.faults]
    if faults:
        raise ContractError(str(file), sorted(faults, key=lambda fault: fault.line or 0))
    return LoadedContract(contract=contract, file=file, text=text)


def secret_headers(contract: Contract, environment: Mapping[str, str]) -> dict[str, str]:
    """The request headers that `fetch.headers` names, with their values from the environment; never to be stored.

    Raises UsageError naming every variable that is not set, or holds what no header can.
    """
    names = contract.fetch.headers
    missing = sorted({name for name in names.values() if not environment.get(name)})
    if missing:
        raise UsageError(
            f"source {contract.source}: fetch.headers needs the environment variable {', '.join(missing)}; set it"
        )
    broken = sorted({name for name in names.values() if not environment[name].isprintable()})
    if broken:
        raise UsageError(
            f"source {contract.source}: the environment variable {', '.join(broken)} holds a line break or another "
            "control character, which no header can; set it to one line"
        )
    return {header: environment[name] for header, name in names.items()}


def _files(folders: Sequence[Path], errors: list[ContractError]) -> Iterator[Path]:
    """The contract files, each once; a folder that cannot be read is an error like a faulty file."""
    seen: set[Path] = set()
    for folder in folders:
        try:
            entries = sorted(folder.iterdir())
        except OSError as error:
            what = "is no folder" if folder.exists() else "does not exist"
            message = f"{what} ({error.strerror}): create it, or name the folders of your contracts in CRAWL_SOURCES"
            errors.append(ContractError(str(folder), [ContractFault(path="(folder)", message=message)]))
            continue
        for file in entries:
            if file.suffix in (".yaml", ".yml") and not file.is_dir() and file.resolve() not in seen:
                seen.add(file.resolve())
                yield file


def _text(file: Path) -> str:
    if file.exists() and not file.is_file():  # reading a pipe would wait for ever
        raise _unreadable(file, "is no regular file")
    try:
        with file.open("rb") as stream:
            raw = stream.read(LARGEST_FILE + 1)
    except OSError as error:
        raise _unreadable(file, f"cannot be read ({error.strerror})") from error
    if len(raw) > LARGEST_FILE:
        raise _unreadable(file, f"is larger than {LARGEST_FILE} bytes: is it a contract?")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise _unreadable(file, "is not UTF-8: save it as UTF-8", line) from error


def _unreadable(file: Path, message: str, line: int | None = None) -> ContractError:
    return ContractError(str(file), [ContractFault(path="(file)", message=message, line=line)])


def _duplicate(found: LoadedContract, first: LoadedContract) -> ContractError:
    message = f'"{found.contract.source}" is the source of {first.file} already: rename one of them'
    line = YamlText(found.text).line("source")
    return ContractError(str(found.file), [ContractFault(path="source", message=message, line=line)])
