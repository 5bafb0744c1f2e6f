"""The two assets of a source, `page_versions` and `records`, and the steps that make them.

Steps hand each other nothing but a crawl's id: what they know of it is in the database.
"""

# No `from __future__ import annotations`: Dagster reads the parameters' types from the annotations as they are.

import threading
import time
from collections.abc import Iterator

import dagster as dg

from crawl_pipeline.defs import metadata, observers
from crawl_pipeline.defs.configuration import CrawlConfig
from crawl_pipeline.defs.contracts import contract_in_force
from crawl_pipeline.defs.failures import reported_failures
from crawl_pipeline.defs.partitions import source_of, sources
from crawl_pipeline.defs.resources import CrawlDatabase
from crawl_pipeline.defs.runs import RunWatch, tag_run
from crawl_pipeline.defs.waiting import run_uninterrupted
from crawl_pipeline.domain.outcomes import StopReason
from crawl_pipeline.errors import InfrastructureError, UsageError
from crawl_pipeline.pipeline import crawl as crawls
from crawl_pipeline.pipeline import re_extract, supervisor
from crawl_pipeline.storage.database import Database

GROUP = "crawl"
OWNERS = ["team:data"]
KINDS = {"python", "postgres"}
WORKER_POOL = "crawl_workers"
STOP_WITHIN = 30.0  # seconds from an interrupt to the end of a step
SAY_EVERY = 10.0  # seconds between two lines of progress in the run's log


contracts = dg.AssetSpec(
    "sources",
    partitions_def=sources,
    group_name=GROUP,
    owners=OWNERS,
    kinds={"yaml"},
    description="One row per source contract: a YAML file of CRAWL_SOURCES says what is crawled, how, and how fresh.",
)


@dg.op(
    ins={"contract": dg.In(dg.Nothing)},
    out=dg.DynamicOut(str, description="The crawl's id; nothing when no page is due."),
)
def open_crawl(
    context: dg.OpExecutionContext, config: CrawlConfig, crawl_database: CrawlDatabase
) -> Iterator[dg.DynamicOutput[str]]:
    """Validate the contract, open the source's crawl or take over a dead one, and put its seeds on the frontier."""
    stop = threading.Event()

    def work() -> crawls.OpenedCrawl:
        source = source_of(context)
        options = config.options()
        with crawl_database.opened(stop) as database:
            contract = contract_in_force(crawl_database.settings(), database, source)
            return crawls.open_crawl(database, contract, run_id=context.run_id, options=options)

    with reported_failures(context):
        crawl = run_uninterrupted(work, stop=stop, grace=STOP_WITHIN)
        tag_run(context.instance, context.run_id, crawl.deadline_at)
        observers.current().opened(crawl)
        context.log.info(metadata.opening_line(crawl))
    if crawl.has_due:
        yield dg.DynamicOutput(str(crawl.crawl_id), mapping_key="machine_0")


@dg.op(pool=WORKER_POOL, out=dg.Out(dg.Nothing))
def crawl_worker(context: dg.OpExecutionContext, crawl_id: str, crawl_database: CrawlDatabase) -> None:
    """Crawl with child processes until nothing is left, a limit is reached or the run is to stop."""
    stop = threading.Event()
    watch = RunWatch(context.instance, context.run_id)
    reporter = _ProgressLog(context)

    def work() -> str:
        with crawl_database.opened(stop) as database:
            crawl = _held_crawl(context, crawl_database, database)
            ending = supervisor.run_workers(
                database, crawl, is_run_live=watch.is_live, on_progress=reporter.take, stop=stop
            )
        if ending == StopReason.STOPPED:
            raise InfrastructureError(
                f"the run was told to stop; crawl {crawl_id} stays open, and the next run resumes it"
            )
        return ending

    with reported_failures(context):
        ending = run_uninterrupted(work, stop=stop, grace=STOP_WITHIN, tick=reporter.tick)
        context.log.info(f"workers of crawl {crawl_id} ended: {ending}")


@dg.op(ins={"done": dg.In(dg.Nothing)}, out=dg.Out(dg.Nothing))
def close_crawl(context: dg.OpExecutionContext, crawl_database: CrawlDatabase) -> dg.Output[None]:
    """Apply or hold removals, close the crawl and report what it did."""
    stop = threading.Event()

    def work() -> tuple[crawls.CrawlReport, metadata.Metadata]:
        with crawl_database.opened(stop) as database:
            crawl = _held_crawl(context, crawl_database, database)
            report = crawls.close_crawl(database, crawl)
            return report, metadata.of_crawl(database, crawl, report)

    with reported_failures(context):
        report, described = run_uninterrupted(work, stop=stop, grace=STOP_WITHIN)
        observers.current().closed(report)
        context.log.info(metadata.closing_line(report))
    return dg.Output(None, metadata=described)


@dg.graph_asset(
    name="page_versions",
    ins={"contract": dg.AssetIn(key="sources", dagster_type=dg.Nothing)},
    partitions_def=sources,
    group_name=GROUP,
    owners=OWNERS,
    kinds=KINDS,
    metadata=metadata.PAGE_VERSIONS,
    description=(
        "One row per distinct content of a page: a new version is stored only when the content changed. "
        "Crawling a source (the partition) makes them, and commits the records of each page with it."
    ),
)
def page_versions(contract: None) -> None:
    done = open_crawl(contract).map(crawl_worker).collect()
    return close_crawl(done=done)  # type: ignore[no-any-return]  # within a graph, ops return handles


@dg.asset(
    name="records",
    partitions_def=sources,
    deps=[page_versions],
    group_name=GROUP,
    owners=OWNERS,
    kinds=KINDS,
    metadata=metadata.RECORDS,
    description=(
        "One row per natural key: the records of a source (the partition). The crawl commits records page by "
        "page; this step re-extracts stored pages that today's rules have not seen, without any request, and reports."
    ),
)
def records(context: dg.AssetExecutionContext, crawl_database: CrawlDatabase) -> dg.MaterializeResult[None]:
    stop = threading.Event()

    def work() -> tuple[re_extract.ReExtractReport, metadata.Metadata]:
        source = source_of(context)
        with crawl_database.opened(stop) as database:
            contract = contract_in_force(crawl_database.settings(), database, source)
            report = re_extract.re_extract(database, contract, run_id=context.run.run_id, stop=stop)
            return report, metadata.of_records(database, report)

    with reported_failures(context):
        report, described = run_uninterrupted(work, stop=stop, grace=STOP_WITHIN)
    observers.current().re_extracted(report)
    return dg.MaterializeResult(metadata=described)


def _held_crawl(context: dg.OpExecutionContext, resource: CrawlDatabase, database: Database) -> crawls.OpenedCrawl:
    """The crawl that this run holds; a run that repeats only the failed steps of another takes over that one's."""
    source = source_of(context)
    try:
        return crawls.load_open_crawl(database, source, context.run_id)
    except UsageError:
        if context.run.parent_run_id is None:
            raise
    contract = contract_in_force(resource.settings(), database, source)
    return crawls.open_crawl(database, contract, run_id=context.run_id, options=crawls.CrawlOptions())


class _ProgressLog:
    """Progress on its way from the supervisor's thread to the observer and, a line now and then, to the run's log."""

    def __init__(self, context: dg.OpExecutionContext) -> None:
        self._context = context
        self._newest: supervisor.Progress | None = None
        self._said_at = time.monotonic()

    def take(self, progress: supervisor.Progress) -> None:
        self._newest = progress
        observers.current().progressed(progress)

    def tick(self) -> None:
        if self._newest is not None and time.monotonic() - self._said_at >= SAY_EVERY:
            self._said_at = time.monotonic()
            self._context.log.info(metadata.progress_line(self._newest))
