"""A link-heavy site: pages of about 24 KB with 80 links each, one record a page. The same bytes on every machine.

Owns the content; `bench.origin` serves it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

_WORDS = (
    "amber", "anchor", "basin", "birch", "cable", "canvas", "cedar", "chalk", "cobalt", "copper", "delta", "ember",
    "fabric", "ferry", "fjord", "garden", "glacier", "granite", "harbour", "hazel", "hollow", "indigo", "ivory",
    "juniper", "kettle", "lantern", "ledger", "linen", "maple", "marble", "meadow", "mortar", "nectar", "oak",
    "ochre", "orchard", "paper", "pebble", "pewter", "pine", "plaster", "quarry", "quartz", "reed", "river",
    "saddle", "saffron", "shale", "silver", "slate", "spruce", "tallow", "thicket", "timber", "umber", "valley",
    "velvet", "walnut", "willow", "winter", "woven", "yarrow", "zephyr",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSite:
    """`pages` pages at /p/0 … Each is reachable from /p/0, because each links to the one after it."""

    pages: int = 2000
    page_bytes: int = 24_000
    links: int = 80

    def path(self, number: int) -> str:
        return f"/p/{number}"

    def targets(self, number: int) -> tuple[int, ...]:
        """The pages that this one links to, each once: a quarter the same on every page, as in a site's navigation."""
        wanted = min(self.links, self.pages)
        found = dict.fromkeys(
            [(number + 1) % self.pages, *range(0, self.pages, max(1, self.pages // max(1, wanted // 4)))]
        )
        step = number
        while len(found) < wanted:
            step = (step * 1_103_515_245 + 12_345) % 2**31
            found.setdefault((step >> 8) % self.pages)
        return tuple(found)[:wanted]

    def record(self, number: int) -> dict[str, object]:
        """The record that the page yields."""
        return {
            "sku": f"LS-{number:05d}",
            "name": f"{_word(number).title()} {_word(number // 7).title()} {number}",
            "price": Decimal(500 + number * 7919 % 90_000).scaleb(-2),
        }

    def html(self, number: int) -> bytes:
        """The page, `page_bytes` long to within a paragraph."""
        record = self.record(number)
        links = "\n".join(
            f'<li class="entry"><a class="entry-link" href="{self.path(target)}">{_word(target)} {target}</a></li>'
            for target in self.targets(number)
        )
        top = (
            '<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8">'
            f"<title>{record['name']}</title></head>\n<body>\n"
            f'<main><h1 class="name">{record["name"]}</h1>\n<p>Article <span class="sku">{record["sku"]}</span></p>\n'
            f'<p class="price">{record["price"]}</p>\n<ul class="entries">\n{links}\n</ul>\n'
        )
        bottom = "</main>\n</body>\n</html>\n"
        parts, size = [top], len(top) + len(bottom)
        for paragraph in _paragraphs(number):
            if size + len(paragraph) > self.page_bytes:
                break
            parts.append(paragraph)
            size += len(paragraph)
        return "".join([*parts, bottom]).encode("ascii")


def _word(number: int) -> str:
    return _WORDS[number % len(_WORDS)]


def _paragraphs(number: int) -> Iterator[str]:
    step = number * 2 + 1
    while True:
        words = []
        for _ in range(60):
            step = (step * 69_069 + 1) % 2**32
            words.append(_word(step >> 16))
        yield f'<div class="text"><p>{" ".join(words).capitalize()}.</p></div>\n'
