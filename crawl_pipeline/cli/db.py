"""`crawl-pipeline db`: the crawl's database."""

from __future__ import annotations

import click
import sqlalchemy as sa

from crawl_pipeline.cli.session import note, settings_now
from crawl_pipeline.storage import opening, schema


@click.group()
def db() -> None:
    """Bring the database up to date; print its URL."""


@db.command()
def upgrade() -> None:
    """Create or upgrade the schema. Safe to run at any time and from several machines at once."""
    version = schema.upgrade(opening.crawl_url(settings_now()))
    click.echo(f"the database has schema version {version}")


@db.command()
@click.option("--show-password", is_flag=True, help="Print the password, if the URL has one.")
def url(show_password: bool) -> None:
    """Print the URL of the database, as psql takes it."""
    settings = settings_now()
    parsed = sa.make_url(opening.crawl_url(settings))
    click.echo(parsed.set(drivername="postgresql").render_as_string(hide_password=not show_password))
    if settings.database_url is None:
        note("the embedded server runs while a command of this project does, such as crawl-pipeline dev")
