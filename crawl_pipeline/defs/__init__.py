"""The Dagster layer: assets, jobs, sensors, schedules, and how a run is launched. Thin: the work is `pipeline`'s."""
