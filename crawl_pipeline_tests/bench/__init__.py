"""The benchmark: sites to crawl, peers to compare with, and the runner that prints the table."""
