"""All tables and functions of the first release."""

from __future__ import annotations

from alembic import op

from crawl_pipeline.storage.schema import SQL, run_sql_file

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Run `schema.sql`, then the functions in the order of their names."""
    connection = op.get_bind()
    for path in (SQL / "schema.sql", *sorted((SQL / "functions").glob("*.sql"))):
        run_sql_file(connection, path)
