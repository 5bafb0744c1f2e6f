"""What the environment says: where the database is, where things are kept, where the contracts lie.

Nothing here touches the database, and nothing reads the environment until `from_environment` is called.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from crawl_pipeline.errors import UsageError

DEFAULT_PATIENCE = timedelta(seconds=60)

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)?")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one process. Folders are absolute; `database_url` None means the embedded Postgres in `home`."""

    home: Path
    source_folders: tuple[Path, ...]
    database_url: str | None = None
    dagster_url: str | None = None  # None: database `dagster` on the same server
    database_patience: timedelta = DEFAULT_PATIENCE  # how long an unreachable database is tried again

    @classmethod
    def from_environment(cls, env: Mapping[str, str], cwd: Path) -> Settings:
        """Read the settings; an empty variable counts as unset. Raises UsageError naming the variable at fault."""
        cwd = cwd.absolute()
        return cls(
            home=cwd / (env.get("CRAWL_HOME") or ".crawl"),
            source_folders=_source_folders(env.get("CRAWL_SOURCES"), cwd),
            database_url=_postgres_url("CRAWL_DATABASE_URL", env),
            dagster_url=_postgres_url("DAGSTER_POSTGRES_URL", env),
            database_patience=_duration("CRAWL_DATABASE_PATIENCE", env, DEFAULT_PATIENCE),
        )


def _source_folders(text: str | None, cwd: Path) -> tuple[Path, ...]:
    if not text:
        own = cwd / "sources"
        return (own if own.is_dir() else Path(__file__).parent / "sources",)
    folders = tuple(cwd / Path(part).expanduser() for part in text.split(os.pathsep) if part)
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f'CRAWL_SOURCES names "{folder}", which is not a folder; make it or correct the variable')
    return folders


def _postgres_url(name: str, env: Mapping[str, str]) -> str | None:
    text = env.get(name)
    if not text:
        return None
    scheme = text.split("://", 1)[0]
    if "://" not in text or scheme.split("+", 1)[0] not in {"postgresql", "postgres"}:
        # The text itself may hold a password: it is not repeated.
        raise UsageError(f"{name} is no Postgres URL; write it as postgresql://user:password@host:5432/database")
    return text


def _duration(name: str, env: Mapping[str, str], default: timedelta) -> timedelta:
    text = env.get(name)
    if not text:
        return default
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise UsageError(f'{name} is "{text}"; use a duration such as 30s, 500ms or 2m')
    return timedelta(seconds=float(match[1]) * _SECONDS[match[2] or "s"])
