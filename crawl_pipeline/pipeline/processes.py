"""Which process holds a crawl, and whether it still lives."""

from __future__ import annotations

import os
import platform
from datetime import timedelta
from pathlib import Path

import psutil

from crawl_pipeline.storage.crawls import CrawlRow, Holder

# A holder on another machine is believed dead when it has not said anything for so long (it says so every 2 s).
SILENT_FOR = timedelta(seconds=45)


def machine_name() -> str:
    """This machine since its last start: a pid means nothing on another one, or after a reboot."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    suffix = boot.read_text().strip()[:8] if boot.exists() else f"{int(psutil.boot_time())}"
    return f"{platform.node()}/{suffix}"


def this_process(run_id: str) -> Holder:
    """This process, as the holder of a crawl."""
    return Holder(run_id=run_id, machine=machine_name(), pid=os.getpid(), pid_started=psutil.Process().create_time())


def is_alive(crawl: CrawlRow) -> bool:
    """Whether the process that holds a crawl lives: looked up on this machine, believed by heartbeat elsewhere."""
    holder = crawl.holder
    if holder.machine != machine_name():
        return crawl.heartbeat_age < SILENT_FOR
    try:
        process = psutil.Process(holder.pid)
        return abs(process.create_time() - holder.pid_started) < 1 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
