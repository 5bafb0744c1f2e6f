"""The demo shop's pages as text, rendered from the catalogue. Pure: the same day gives the same bytes."""

from __future__ import annotations

import json
from decimal import Decimal
from html import escape

from crawl_pipeline.demo import catalogue
from crawl_pipeline.demo.catalogue import Product

_STYLE = """
  body { margin: 0; font: 16px/1.5 Georgia, serif; color: #2b2622; background: #faf7f2; }
  header, footer { padding: 1rem 2rem; background: #2f4037; color: #f3efe6; }
  header a, footer a { color: inherit; margin-right: 1.2rem; text-decoration: none; }
  main { max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
  h1 { font-weight: normal; font-size: 2rem; margin: .2rem 0 1rem; }
  .crumbs { font-size: .85rem; color: #7b7168; }
  .grid { display: grid; grid-template-columns: repeat(4, 1fr); gap: 1rem; padding: 0; list-style: none; }
  .grid li { padding: 1rem; background: #fff; border: 1px solid #e5ddd1; border-radius: 4px; }
  .price { font-size: 1.6rem; color: #8a3b12; margin: .5rem 0; }
  .stock[data-available=true] { color: #33691e; }
  .stock[data-available=false] { color: #b23c17; }
  table { border-collapse: collapse; margin: 1rem 0; }
  th, td { text-align: left; padding: .3rem 1rem .3rem 0; border-bottom: 1px solid #e5ddd1; }
  .pager { display: flex; justify-content: space-between; margin: 2rem 0; }
"""

_FRAME = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} | Demo Shop</title>
<meta name="description" content="{summary}">
<style>{style}</style>{head}
</head>
<body>
<header>
<nav aria-label="Main"><a href="/list/0"><strong>Demo Shop</strong></a>
<a href="/list/0">Furniture</a><a href="/list/8">Kitchen</a><a href="/list/16">Living</a>
<a href="/cart/" rel="nofollow">Cart (0)</a></nav>
</header>
<main>
{main}
</main>
<footer>
<p>Demo Shop, a shop that sells nothing. Prices include VAT.
<a href="/list/0?utm_source=footer">All products</a><a href="mailto:shop@example.com">Contact</a></p>
</footer>
</body>
</html>
"""


def _frame(title: str, summary: str, main: str, head: str = "") -> str:
    return _FRAME.format(title=escape(title), summary=escape(summary), style=_STYLE, main=main, head=head)


def list_page(number: int) -> str:
    """List page `number`: links to its products and to the lists beside it. Shows no price: it never changes."""
    items = "\n".join(
        f'<li><a href="{item.path}">{escape(item.name)}</a><br><small>Made by {escape(item.brand)}</small></li>'
        for item in map(catalogue.product, catalogue.products_on_list(number))
    )
    before = f'<a rel="prev" href="/list/{number - 1}">Previous page</a>' if number else "<span></span>"
    after = (
        f'<a rel="next" href="/list/{number + 1}">Next page</a>' if number + 1 < catalogue.LISTS else "<span></span>"
    )
    title = f"All products, page {number + 1} of {catalogue.LISTS}"
    main = f"""<p class="crumbs">Home / Products</p>
<h1>{title}</h1>
<ul class="grid">
{items}
</ul>
<nav class="pager" aria-label="Pages">{before}{after}</nav>"""
    return _frame(title, f"Page {number + 1} of everything the demo shop has.", main)


def product_page(number: int, day: int) -> str:
    """The page of product `number` on `day`; between days only the price differs."""
    item = catalogue.product(number)
    price = catalogue.price_on(day, number)
    listed = (number - 1) // catalogue.PER_LIST
    related = "\n".join(
        f'<li><a href="{other.path}">{escape(other.name)}</a></li>'
        for other in map(catalogue.product, catalogue.related(number))
    )
    stock = "In stock, leaves us within two days" if item.in_stock else "Sold out, back in a few weeks"
    main = f"""<p class="crumbs"><a href="/list/{listed}">Products</a> / {escape(item.name)}</p>
<article class="product">
<h1>{escape(item.name)}</h1>
<p>Article number <span class="sku">{item.sku}</span></p>
<p class="price">€ {price:,.2f}</p>
<p class="stock" data-available="{str(item.in_stock).lower()}">{stock}</p>
<p class="description">{escape(item.description)}</p>
<table>
<tr><th>Width</th><td>{20 + number % 90} cm</td></tr>
<tr><th>Height</th><td>{15 + number * 3 % 120} cm</td></tr>
<tr><th>Weight</th><td>{1 + number % 17}.{number % 10} kg</td></tr>
<tr><th>Delivery</th><td>Free within the city, otherwise by parcel</td></tr>
</table>
</article>
<section aria-label="Related">
<h2>Goes well with</h2>
<ul class="grid">
{related}
</ul>
</section>"""
    return _frame(item.name, item.description, main, _json_ld(item, price) if item.has_json_ld else "")


def _json_ld(item: Product, price: Decimal) -> str:
    data = {
        "@context": "https://schema.org",
        "@type": "Product",
        "sku": item.sku,
        "name": item.name,
        "brand": {"@type": "Brand", "name": item.brand},
        "offers": {
            "@type": "Offer",
            "price": str(price),
            "priceCurrency": "EUR",
            "availability": f"https://schema.org/{'InStock' if item.in_stock else 'OutOfStock'}",
        },
    }
    return f'\n<script type="application/ld+json">{json.dumps(data)}</script>'


def robots_txt(base_url: str) -> str:
    """Everything but the cart may be crawled; the sitemap is named."""
    return f"User-agent: *\nDisallow: /cart/\n\nSitemap: {base_url}/sitemap.xml\n"


def sitemap_xml(base_url: str, day: int) -> str:
    """Every list and product page, with the day of its last change."""
    pages = [(f"/list/{number}", catalogue.modified_at(day)) for number in range(catalogue.LISTS)]
    pages += [
        (catalogue.product(number).path, catalogue.modified_at(day, number))
        for number in range(1, catalogue.PRODUCTS + 1)
    ]
    entries = "\n".join(
        f"<url><loc>{base_url}{path}</loc><lastmod>{changed:%Y-%m-%d}</lastmod></url>" for path, changed in pages
    )
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n{entries}\n</urlset>\n'
    )


def page_paths() -> dict[str, int | None]:
    """The path of every page; the value is a product's number, or None for a list page."""
    paths: dict[str, int | None] = {f"/list/{number}": None for number in range(catalogue.LISTS)}
    for number in range(1, catalogue.PRODUCTS + 1):
        paths[catalogue.product(number).path] = number
    return paths
