"""Bytes to values: documents, links, records, Markdown, sitemaps. No I/O; the only layer that knows the HTML parser."""
