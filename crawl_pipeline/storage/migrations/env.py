"""Runs the migrations over the connection that `storage.schema.upgrade` hands in, one transaction each."""

from __future__ import annotations

from alembic import context

from crawl_pipeline.storage.schema import VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    version_table=VERSION_TABLE,
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
