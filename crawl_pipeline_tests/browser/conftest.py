"""The shared stack."""

from crawl_pipeline_tests.live.sharing import stack as stack
