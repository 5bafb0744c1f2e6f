"""Everything that lives in Postgres: the server, the connections, the schema and the stores."""
