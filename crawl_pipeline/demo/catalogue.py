"""What the demo shop sells: 500 products whose prices are a function of the day, and of nothing else.

Owns the facts; how they look as HTML is decided in `demo.pages`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cache

PRODUCTS = 500
LISTS = 25
PER_LIST = PRODUCTS // LISTS
CHANGES_PER_DAY = 7

_OPENED_AT = datetime(2026, 1, 1, 6, 0, tzinfo=UTC)  # day 0
_STRIDE = 137  # coprime with PRODUCTS: walks over every product before one is met again
_STEPS = (100, 90, 105, 95)  # per cent of the base price, after 0, 1, 2, 3, 4, … changes

_THINGS = (
    "Bookshelf", "Desk Lamp", "Side Table", "Stool", "Wall Clock", "Serving Tray", "Fruit Bowl", "Coat Rack",
    "Picture Frame", "Cutting Board", "Armchair", "Mirror", "Candle Holder", "Magazine Rack", "Bench", "Vase",
    "Pen Holder", "Plant Stand", "Shoe Rack", "Storage Box",
)  # fmt: skip
_MATERIALS = (
    "Oak", "Walnut", "Ash", "Beech", "Maple", "Cherry", "Birch", "Pine", "Larch", "Teak", "Bamboo", "Rattan", "Cork",
    "Linen", "Wool Felt", "Leather", "Brass", "Copper", "Steel", "Iron", "Marble", "Slate", "Terracotta", "Glass",
    "Porcelain",
)  # fmt: skip
_BRANDS = ("Holm & Daughters", "Nordlicht", "Atelier Vasseur", "Kiln Street", "Fjordwerk")
_ROOMS = ("hall", "kitchen", "study", "bedroom", "living room", "workshop", "garden room")
_FINISHES = ("oiled by hand", "left untreated", "brushed twice", "sealed with wax", "polished to a soft sheen")


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """One product as it never changes; its price is `price_on`."""

    number: int  # 1 … PRODUCTS
    sku: str
    name: str
    path: str
    in_stock: bool
    description: str
    brand: str
    has_json_ld: bool


@cache
def product(number: int) -> Product:
    """The product with this number, 1 to PRODUCTS."""
    if not 1 <= number <= PRODUCTS:
        raise ValueError(f"the shop has no product {number}; there are 1 to {PRODUCTS}")
    index = number - 1
    material = _MATERIALS[(index + index // len(_THINGS)) % len(_MATERIALS)]
    name = f"{material} {_THINGS[index % len(_THINGS)]}"
    return Product(
        number=number,
        sku=f"DS-{number:04d}",
        name=name,
        path=f"/product/{number}-{name.lower().replace(' ', '-')}",
        in_stock=index % 7 != 3,
        description=(
            f"This {name.lower()} is meant for the {_ROOMS[index % len(_ROOMS)]}, made in small batches and "
            f"{_FINISHES[index % len(_FINISHES)]}. It leaves our workshop in batch {100 + index}."
        ),
        brand=_BRANDS[index % len(_BRANDS)],
        has_json_ld=number % 3 == 0,
    )


def products_on_list(number: int) -> range:
    """The numbers of the products that list page `number` (0 to LISTS - 1) links to."""
    return range(number * PER_LIST + 1, (number + 1) * PER_LIST + 1)


def related(number: int) -> tuple[int, ...]:
    """Four other products that the page of this one links to."""
    return tuple((number - 1 + step) % PRODUCTS + 1 for step in (1, 61, 173, 311))


def changed_on(day: int) -> frozenset[int]:
    """The numbers of the CHANGES_PER_DAY products whose price differs from the day before; none on day 0."""
    if day < 1:
        return frozenset()
    turns = range(day * CHANGES_PER_DAY, (day + 1) * CHANGES_PER_DAY)
    return frozenset(turn * _STRIDE % PRODUCTS + 1 for turn in turns)


def price_on(day: int, number: int) -> Decimal:
    """The price in euros, with two decimals."""
    cents = 990 + (number * 7919) % 140_000
    per_cent = _STEPS[len(_turns(day, number)) % len(_STEPS)]
    return Decimal(cents * per_cent // 100).scaleb(-2)


def modified_at(day: int, number: int | None = None) -> datetime:
    """When the page last changed, seen from `day`: a product's last price, or the opening for all else."""
    turns = _turns(day, number) if number is not None else ()
    return _OPENED_AT + timedelta(days=turns[-1] // CHANGES_PER_DAY if turns else 0)


def last_change(day: int) -> datetime:
    """When anything in the shop last changed, seen from `day`."""
    return _OPENED_AT + timedelta(days=day)


def _turns(day: int, number: int) -> range:
    """The turns, from day 1 to `day`, in which the product changes its price."""
    first = (number - 1) * pow(_STRIDE, -1, PRODUCTS) % PRODUCTS
    if first < CHANGES_PER_DAY:  # these turns are day 0's, the opening
        first += PRODUCTS
    return range(first, (day + 1) * CHANGES_PER_DAY, PRODUCTS)


def expected_records(day: int) -> dict[str, dict[str, object]]:
    """What a crawl on `day` must have stored, by SKU: the contract's fields with their typed values."""
    records: dict[str, dict[str, object]] = {}
    for number in range(1, PRODUCTS + 1):
        item = product(number)
        records[item.sku] = {
            "sku": item.sku,
            "name": item.name,
            "price": price_on(day, number),
            "in_stock": item.in_stock,
            "description": item.description,
            "brand": item.brand if item.has_json_ld else None,
        }
    return records
