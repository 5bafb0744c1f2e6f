"""The bundled demo shop: a small site to crawl on this machine, and its contract."""
