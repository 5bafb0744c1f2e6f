"""Limits of a valid contract that contradict each other: what `sources check` says beyond faults."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from datetime import timedelta

from crawl_pipeline.domain.contract import Contract
from crawl_pipeline.domain.durations import format_duration
from crawl_pipeline.domain.revisit import DEFAULT_INTERVAL

_LOCAL_NAMES = ("localhost", ".localhost", ".local", ".internal", ".test")


def warnings(contract: Contract) -> list[str]:
    """One sentence for each pair of keys that cannot both hold, or that a public site should not see."""
    return [*_limits(contract), *_pace(contract), *_manners(contract), *_records(contract)]


def _limits(contract: Contract) -> Iterator[str]:
    limits = contract.limits
    if limits.max_urls < limits.max_pages:
        yield f"limits.max_urls {limits.max_urls} is below limits.max_pages {limits.max_pages}: it ends crawls first"
    if limits.max_idle >= limits.max_duration:
        yield "limits.max_idle is not below limits.max_duration: a blocked crawl ends by its deadline, not as deferred"
    if limits.max_in_flight < contract.politeness.slots:
        yield "limits.max_in_flight is below politeness.slots: the slots can never all be used"


def _pace(contract: Contract) -> Iterator[str]:
    """What min_delay, held at each host, makes of the other limits; a wildcard may stand for any number of hosts."""
    hosts, limits, freshness = contract.scope.hosts, contract.limits, contract.freshness
    delay = contract.politeness.min_delay
    if any(host.startswith("*.") for host in hosts) or not delay:
        return
    needed = delay * limits.max_pages / len(hosts)
    if needed > limits.max_duration:
        fitting = int(limits.max_duration / delay) * len(hosts)
        yield (
            f"politeness.min_delay {format_duration(delay)} x limits.max_pages {limits.max_pages} takes "
            f"{_hours(needed)}, beyond limits.max_duration {format_duration(limits.max_duration)}: "
            f"at most {fitting} pages fit"
        )
    interval = freshness.interval or freshness.window * DEFAULT_INTERVAL
    if needed * 2 > interval:
        yield (
            f"freshness.window {format_duration(freshness.window)}: {limits.max_pages} pages would need more than half "
            f"of what politeness.min_delay {format_duration(delay)} allows; lower limits.max_pages or widen the window"
        )
    if freshness.interval is not None and freshness.interval < freshness.min:
        yield "freshness.interval is below freshness.min: pages are checked every freshness.min"


def _manners(contract: Contract) -> Iterator[str]:
    public = [host for host in contract.scope.hosts if not is_local(host)]
    agent = contract.politeness.user_agent
    if public and "+http" not in agent and "mailto:" not in agent and "@" not in agent:
        yield (
            f'politeness.user_agent "{agent}" names no contact, and {public[0]} is a public host: '
            "add one, such as shop-bot/1.0 (+https://your.site/bot)"
        )
    if public and contract.politeness.robots == "ignore":
        yield f"politeness.robots is ignore, and {public[0]} is a public host: ignore is for a site of your own"


def _records(contract: Contract) -> Iterator[str]:
    for index, rule in enumerate(contract.records):
        for name in rule.key:
            if name in rule.fields and not rule.fields[name].required:
                yield f"records[{index}].fields.{name} is in the key but not required: records may share an empty key"


def is_local(host: str) -> bool:
    """Whether a host pattern names this machine or a network of one's own, as far as the name tells."""
    name = host.removeprefix("*.").rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host.removeprefix("*.")
    try:
        return not ipaddress.ip_address(name.strip("[]")).is_global
    except ValueError:
        return name == "localhost" or ("." + name).endswith(_LOCAL_NAMES[1:])


def _hours(duration: timedelta) -> str:
    hours = duration / timedelta(hours=1)
    return f"{hours:.1f} h" if hours >= 1 else f"{hours * 60:.0f} min"
