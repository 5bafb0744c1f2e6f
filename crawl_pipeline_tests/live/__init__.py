"""The whole stack as `crawl-pipeline dev` serves it: code server, web server and daemon on the embedded Postgres."""
