"""`crawl-pipeline dev`: Postgres, code server, web server, daemon and demo shop under one roof, until Ctrl-C."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import click
import psutil

import crawl_pipeline
from crawl_pipeline.cli.services import Service, end, free_port, is_taken
from crawl_pipeline.cli.signals import stop_signals
from crawl_pipeline.errors import ContractErrors, InfrastructureError, UsageError
from crawl_pipeline.settings import Settings

SHOP_PORT = 8800
DEMO_SOURCE = "demo_shop"
READY_WITHIN = 180.0  # seconds, each
STOP_WITHIN = 5.0  # seconds, each; then by force: they hold nothing that a kill could spoil
RUNS_STOP_WITHIN = 35.0
LOCATION = "crawl_pipeline"


@click.command()
@click.option("--port", type=click.IntRange(1, 65535), default=3000, show_default=True, help="Port of the UI.")
def dev(port: int) -> int:
    """Serve the Dagster UI on this machine, with its daemon, the demo shop and the embedded Postgres, until Ctrl-C.

    Logs are in CRAWL_HOME/logs. Runs that are under way at the end give back what they hold, and are launched again
    by the next start.
    """
    settings = _with_demo(Settings.from_environment(os.environ, Path.cwd()))
    if is_taken(port):
        raise UsageError(f"port {port} is taken; choose another: crawl-pipeline dev --port {port + 1}")
    with stop_signals() as signals:
        with suppress(KeyboardInterrupt), _stopped_at_the_end(Services(settings=settings, port=port)) as services:
            services.start()
            click.echo(f"crawl_pipeline is ready on http://127.0.0.1:{port} (Ctrl-C ends it; logs in {services.logs})")
            services.watch()
        return signals.exit_code or 0


@dataclass(slots=True, kw_only=True)
class Services:
    """What runs, in the order of its start."""

    settings: Settings
    port: int
    shop: Service | None = None
    code_server: Service | None = None
    fronts: list[Service] = field(default_factory=list)

    @property
    def logs(self) -> Path:
        """The folder of their logs."""
        return self.settings.home / "logs"

    def start(self) -> None:
        """Start everything and return when the UI answers. Raises InfrastructureError naming what did not start."""
        from crawl_pipeline.defs.instance import prepare_instance
        from crawl_pipeline.storage.opening import open_database

        home = prepare_instance(self.settings)
        open_database(self.settings).close()
        self._start_shop()
        self._prepare_dagster(home)
        code_port = free_port()
        module = ["-m", "crawl_pipeline.definitions", "--location-name", LOCATION]
        address = ["-h", "127.0.0.1", "-p", str(code_port)]
        self.code_server = self._service(
            "code server", ["dagster", "code-server", "start", *address, *module, "--log-level", "warning"]
        )
        self.code_server.wait_until(lambda: is_taken(code_port), within=READY_WITHIN)
        workspace = _write_workspace(home, code_port)
        quiet = ["--log-level", "warning", "--code-server-log-level", "warning"]
        self.fronts.append(
            self._service(
                "web server", ["dagster_webserver", "-w", workspace, "-h", "127.0.0.1", "-p", str(self.port), *quiet]
            )
        )
        self.fronts.append(self._service("daemon", ["dagster._daemon", "run", "-w", workspace, *quiet]))
        self.fronts[0].wait_until(lambda: _answers(self.port), within=READY_WITHIN)

    def watch(self) -> None:
        """Wait until one of them ends, which is an InfrastructureError, or an interrupt comes."""
        while True:
            for service in (self.code_server, *self.fronts):
                if service is not None and service.has_ended():
                    raise InfrastructureError(f"the {service.name} ended by itself; see {service.log}")
            time.sleep(0.5)

    def stop(self) -> None:
        """Stop everything within seconds, who asks before who answers; runs give back what they hold."""
        for service in self.fronts:
            service.ask_to_stop()
        for service in self.fronts:
            service.stop(within=STOP_WITHIN)
        if self.code_server is not None:
            runs = [process for process in self.code_server.children() if _is_run(process)]
            for run in runs:
                run.terminate()
            end(runs, within=RUNS_STOP_WITHIN)
            self.code_server.stop(within=STOP_WITHIN)
        if self.shop is not None:
            self.shop.stop(within=STOP_WITHIN)

    def _service(self, name: str, arguments: list[str]) -> Service:
        environment = {
            **os.environ,
            "CRAWL_HOME": str(self.settings.home),
            "CRAWL_SOURCES": os.pathsep.join(map(str, self.settings.source_folders)),
        }
        return Service(name, arguments, environment=environment, log=self.logs / f"{name.replace(' ', '-')}.log")

    def _start_shop(self) -> None:
        if is_taken(SHOP_PORT):
            click.echo(f"port {SHOP_PORT} is in use, so the demo shop is not started", err=True)
            return
        self.shop = self._service("shop", ["crawl_pipeline.demo.shop", "--port", str(SHOP_PORT)])

    def _prepare_dagster(self, home: Path) -> None:
        """Make the instance's tables, before several processes want to, and a partition for each contract."""
        from crawl_pipeline.defs import launch, partitions

        with launch.opened_instance(home) as instance:
            try:
                partitions.add_partitions(instance, self.settings)
            except ContractErrors as error:
                click.echo(f"{error}\nThe sources of these contracts are missing until they are mended.", err=True)


@contextmanager
def _stopped_at_the_end(services: Services) -> Iterator[Services]:
    from crawl_pipeline.defs.waiting import shielded

    try:
        yield services
    finally:
        with shielded():
            services.stop()


def _with_demo(settings: Settings) -> Settings:
    """The settings with the demo's contract, unless a folder of theirs has one of its name."""
    from crawl_pipeline.defs.contracts import contracts

    if DEMO_SOURCE in contracts(settings).valid:
        return settings
    demo = Path(crawl_pipeline.__file__).parent / "demo" / "sources"
    return replace(settings, source_folders=tuple(dict.fromkeys((*settings.source_folders, demo))))


def _write_workspace(home: Path, code_port: int) -> str:
    server = {"host": "127.0.0.1", "port": code_port, "location_name": LOCATION}
    workspace = home / "workspace-dev.yaml"
    workspace.write_text(json.dumps({"load_from": [{"grpc_server": server}]}), encoding="utf-8")
    return str(workspace)


def _is_run(process: psutil.Process) -> bool:
    """The code server starts each run as a spawned process."""
    try:
        return any("multiprocessing.spawn" in part for part in process.cmdline())
    except psutil.Error:
        return False


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/server_info", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
