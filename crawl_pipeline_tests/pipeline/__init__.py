"""Crawls against real sites, with real worker processes, without Dagster."""
