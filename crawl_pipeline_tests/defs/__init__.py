"""The Dagster layer and the commands that run it: real runs on a cloned database, real processes, real signals."""
