"""What Dagster loads: two assets of each source, the job that makes them, and what runs by itself.

Loading touches no environment, no database and no contract, so that it works anywhere.
"""

from __future__ import annotations

from crawl_pipeline.defs.code_location import defs

__all__ = ["defs"]
