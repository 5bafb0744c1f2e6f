"""A durable, polite, idempotent web crawler: a Dagster pipeline with partitioned assets on Postgres."""

__version__ = "0.1.0"
