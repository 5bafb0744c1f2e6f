"""What must hold in the database whenever no transaction is open."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from crawl_pipeline.storage.database import Database

# Each query returns the offenders.
INVARIANTS = {
    "counters_equal_the_recount": """
        SELECT source_id, name, counted.n AS counted, counts.n AS counters FROM
          (SELECT source_id, state AS name, count(*) AS n FROM urls WHERE NOT is_sitemap GROUP BY 1, 2) counted
          FULL JOIN (SELECT source_id, name, n FROM counts
            WHERE crawl_id = '00000000-0000-0000-0000-000000000000' AND n <> 0) counts USING (source_id, name)
         WHERE counted.n IS DISTINCT FROM counts.n""",
    "leases_remain_with_their_urls": """
        SELECT l.lease_token, l.remaining, count(u.url_key) AS leased FROM leases l
          LEFT JOIN urls u
            ON u.source_id = l.source_id AND u.lease_token = l.lease_token AND u.url_key = ANY (l.url_keys)
         GROUP BY 1, 2 HAVING count(u.url_key) <> l.remaining OR (l.remaining = 0) <> (l.url_keys = '{}')""",
    "leased_urls_have_a_lease": """
        SELECT u.source_id, u.url FROM urls u LEFT JOIN leases l USING (lease_token)
         WHERE u.lease_token IS NOT NULL AND l.lease_token IS NULL""",
    "slots_are_leased_once": """
        SELECT l.host_id, s.n FROM leases l JOIN hosts h USING (host_id) CROSS JOIN LATERAL unnest(l.slot_nos) AS s(n)
         GROUP BY 1, 2 HAVING count(*) > 1 OR s.n >= min(h.slots)""",
    "due_hints_are_never_later_than_the_truth": """
        SELECT u.source_id, u.host_id, u.lane, u.due_at, q.next_due_at::text FROM (
          SELECT source_id, host_id, (state <> 'queued')::int AS lane, min(due_at) AS due_at FROM urls
           WHERE lease_token IS NULL AND due_at IS NOT NULL GROUP BY 1, 2, 3) u
          LEFT JOIN queues q ON q.source_id = u.source_id AND q.host_id = u.host_id AND q.lane = u.lane
         WHERE q.next_due_at IS NULL OR q.next_due_at > u.due_at""",
    "rest_hints_end_with_the_rest": """
        SELECT q.source_id, q.host_id, q.not_before FROM queues q JOIN hosts h USING (host_id)
         WHERE q.not_before > greatest(
           clock_timestamp() + interval '1 second', h.blocked_until, h.next_request_at, h.yield_until,
           (SELECT min(l.expires_at) + interval '1 second' FROM leases l WHERE l.host_id = q.host_id))""",
    "record_versions_do_not_overlap": """
        SELECT a.record_id, a.valid_from FROM record_versions a JOIN record_versions b ON b.record_id = a.record_id
         WHERE b.valid_from > a.valid_from AND b.valid_from < coalesce(a.valid_to, 'infinity')""",
    "the_current_version_is_the_record": """
        SELECT r.record_id, r.data, v.data AS version FROM records r
          LEFT JOIN record_versions v ON v.record_id = r.record_id AND v.valid_to IS NULL
         WHERE (r.gone_at IS NULL) <> (v.record_id IS NOT NULL) OR v.data <> r.data""",
    "records_have_a_page_or_are_missing": """
        SELECT r.record_id, r.missing_since, r.gone_at FROM records r
         WHERE (r.missing_since IS NULL) <> EXISTS (
           SELECT 1 FROM record_pages p
            WHERE p.record_id = r.record_id AND p.url_key = r.url_key AND p.data_hash = r.data_hash)""",
    "claims_keep_the_data_that_differ": """
        SELECT p.record_id, p.url_key, p.data FROM record_pages p JOIN records r USING (record_id)
         WHERE (p.data IS NULL) <> (p.data_hash = r.data_hash)""",
}


def broken_invariants(database: Database) -> dict[str, list[Any]]:
    """The invariants that do not hold, with their offenders; empty when all is well."""
    with database.connection() as connection:
        found = {name: list(connection.execute(sa.text(query)).all()) for name, query in INVARIANTS.items()}
    return {name: rows for name, rows in found.items() if rows}
