"""Commands run as a person runs them, in this process, against a test's database and its own contracts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner, Result

from crawl_pipeline.cli import main


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """Where a test sits: its folder (with `sources/`) and the database it works with."""

    folder: Path
    database_url: str

    @property
    def environment(self) -> dict[str, str]:
        """What the commands read of the environment."""
        return {
            "CRAWL_DATABASE_URL": self.database_url,
            "CRAWL_SOURCES": str(self.folder / "sources"),
            "CRAWL_HOME": str(self.folder / "home"),
            "CRAWL_DATABASE_PATIENCE": "5s",
        }

    def write_contract(self, contract: Mapping[str, Any]) -> Path:
        """Put a contract file into the folder of contracts."""
        file = self.folder / "sources" / f"{contract['source']}.yaml"
        file.write_text(yaml.safe_dump(dict(contract), sort_keys=False))
        return file

    def try_(self, *arguments: object) -> Result:
        """Run a command, whatever comes of it; never a traceback."""
        result = CliRunner(env=self.environment).invoke(main, [str(argument) for argument in arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    def run(self, *arguments: object) -> str:
        """Run a command that must succeed; its stdout."""
        result = self.try_(*arguments)
        assert result.exit_code == 0, result.stderr
        return result.stdout

    def refused(self, *arguments: object, exit_code: int = 2) -> str:
        """Run a command that must fail; the one line that it says."""
        result = self.try_(*arguments)
        assert result.exit_code == exit_code
        assert result.stdout == ""
        return result.stderr.strip()

    def json(self, *arguments: object) -> Any:
        """What a command says with `--json`."""
        return json.loads(self.run(*arguments, "--json"))
