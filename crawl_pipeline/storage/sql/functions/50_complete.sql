-- The commit of a group of 1..64 pages of one source: body, version, records, links, log, next visit, host's health, in one
-- transaction under the pages' lease tokens. Returns the pages whose lease was lost (1-based: nothing of them is stored), the
-- number of new URLs, and which of the pages' hosts rest now.
-- The order of its parts is the proof against deadlock: leases, bodies, records, links, own URLs, hosts, queues.
CREATE OR REPLACE FUNCTION complete(
  p_source int, p_crawl uuid, p_worker text,
  p_token uuid[], p_key uuid[], p_host int[], p_state text[], p_reason text[], p_due timestamptz[], p_tries smallint[],
  p_is_sitemap boolean[], p_is_checked boolean[], p_validators boolean[], p_etag text[], p_last_modified text[], p_is_noindex boolean[], p_robots_tags text[], p_host_failed boolean[],
  p_redirected_to uuid[], v_page int[], v_body_hash bytea[], v_size int[], v_body bytea[], v_content_hash bytea[], v_extractor text[], v_client text[],
  v_type text[], v_encoding text[], v_url text[], v_title text[], v_markdown text[],
  e_page int[], e_extractor text[], e_content_hash bytea[],
  l_page int[], l_key uuid[], l_authority text[], l_url text[], l_depth smallint[], l_is_sitemap boolean[],
  m_page int[], r_page int[], r_id uuid[], r_type text[], r_key text[], r_data jsonb[], r_hash bytea[],
  f_page int[], f_url text[], f_started timestamptz[], f_elapsed int[], f_status smallint[], f_reason text[], f_detail text[],
  f_bytes int[], f_hash bytea[], f_http text[],
  OUT lost int[], OUT new_urls int, OUT blocked_hosts int[], OUT blocked_until timestamptz[]) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  t timestamptz := clock_timestamp(); v_ok int[]; v_end uuid[]; v_end_hosts int[]; v_ver bigint[]; v_keys uuid[]; v_vers bigint[];
  n_host int[]; w_host int[]; w_lane smallint[]; w_due timestamptz[]; rec record; v_room bigint; v_over bigint := 0;
  h_host int[]; h_failed int[]; h_ok boolean[];
BEGIN
  -- 1. fence: the lease rows, locked in token order (serialises with requeue_expired and release)
  PERFORM 1 FROM leases WHERE lease_token = ANY (p_token) ORDER BY lease_token FOR NO KEY UPDATE;
  -- 2. which pages are still ours. Only a SELECT: the lease rows are locked, so nobody can take the URLs away. The UPDATE comes
  --    after the inserts, because INSERT .. ON CONFLICT DO NOTHING waits for a transaction that is UPDATING the conflicting row:
  --    two committers whose pages link to each other would deadlock.
  SELECT array_agg(p.i::int ORDER BY p.i) INTO v_ok FROM unnest(p_token, p_key) WITH ORDINALITY AS p(tok, k, i)
    JOIN urls u ON u.source_id = p_source AND u.url_key = p.k AND u.lease_token = p.tok
    JOIN leases l ON l.lease_token = p.tok;
  v_ok := coalesce(v_ok, '{}'); new_urls := 0;
  SELECT coalesce(array_agg(i), '{}') INTO lost FROM generate_subscripts(p_key, 1) i WHERE NOT i = ANY (v_ok);
  IF v_ok = '{}' THEN RETURN; END IF;
  -- 3. bodies, versions and what they were extracted with
  IF cardinality(v_page) > 0 THEN
    INSERT INTO bodies (body_hash, size_bytes, body)
      SELECT DISTINCT ON (h) h, s, b FROM unnest(v_page, v_body_hash, v_size, v_body) AS v(i, h, s, b) WHERE i = ANY (v_ok) ORDER BY h
      ON CONFLICT DO NOTHING;
    WITH n AS (
      INSERT INTO page_versions (source_id, url_key, version_no, seen_at, crawl_id, body_hash, content_hash, extractor_version, client,
                                 content_type, encoding, final_url, title, markdown)
      SELECT p_source, p.k, coalesce(c.version_no, 0) + 1, t, p_crawl, v.h, v.c, v.x, v.cl, v.ty, v.en, v.u, v.ti, v.md
        FROM unnest(v_page, v_body_hash, v_content_hash, v_extractor, v_client, v_type, v_encoding, v_url, v_title, v_markdown)
             AS v(i, h, c, x, cl, ty, en, u, ti, md)
        JOIN unnest(p_key) WITH ORDINALITY AS p(k, i) ON p.i = v.i
        JOIN urls u ON u.source_id = p_source AND u.url_key = p.k
        LEFT JOIN page_versions c ON c.version_id = u.version_id
       WHERE v.i = ANY (v_ok)
      RETURNING version_id, url_key, extractor_version, content_hash),
    x AS (INSERT INTO extractions SELECT version_id, extractor_version, content_hash, t FROM n)
    SELECT array_agg(url_key), array_agg(version_id) INTO v_keys, v_vers FROM n;
  END IF;
  SELECT array_agg(coalesce(n.version, u.version_id) ORDER BY p.i) INTO v_ver FROM unnest(p_key) WITH ORDINALITY AS p(k, i)
    LEFT JOIN unnest(v_keys, v_vers) AS n(k, version) ON n.k = p.k
    LEFT JOIN urls u ON u.source_id = p_source AND u.url_key = p.k;
  IF cardinality(e_page) > 0 THEN
    UPDATE extractions e SET extractor_version = x.extractor, content_hash = x.hash, extracted_at = t
      FROM unnest(e_page, e_extractor, e_content_hash) AS x(i, extractor, hash)
     WHERE x.i = ANY (v_ok) AND e.version_id = v_ver[x.i];
  END IF;
  INSERT INTO fetches (source_id, url_key, started_at, crawl_id, worker_id, url, elapsed_ms, status, outcome, reason, detail, body_bytes, body_hash, http_version)
    SELECT p_source, p.k, f.s, p_crawl, p_worker, f.u, f.el, f.st, p.state, f.r, f.d, f.b, f.h, f.hv
      FROM unnest(f_page, f_url, f_started, f_elapsed, f_status, f_reason, f_detail, f_bytes, f_hash, f_http) AS f(i, u, s, el, st, r, d, b, h, hv)
      JOIN unnest(p_key, p_state) WITH ORDINALITY AS p(k, state, i) ON p.i = f.i WHERE f.i = ANY (v_ok);
  -- 4. records. A page that redirects now yields what it yielded, but for what the page it leads to claims: that passes to it.
  IF EXISTS (SELECT 1 FROM unnest(p_redirected_to) x WHERE x IS NOT NULL) THEN
    WITH c AS (
      SELECT p.i::int AS i, x.record_id, x.record_type, x.record_key, coalesce(rp.data, x.data) AS data, rp.data_hash,
             EXISTS (SELECT 1 FROM record_pages o WHERE o.source_id = p_source AND o.url_key = p.target AND o.record_id = rp.record_id)
             OR EXISTS (SELECT 1 FROM unnest(r_page, r_id) AS r(page, id) WHERE r.id = rp.record_id AND r.page = ANY (v_ok) AND p_key[r.page] = p.target)
               AS passes
        FROM unnest(p_key, p_redirected_to) WITH ORDINALITY AS p(k, target, i)
        JOIN record_pages rp ON rp.source_id = p_source AND rp.url_key = p.k JOIN records x USING (record_id)
       WHERE p.target IS NOT NULL AND p.i = ANY (v_ok)),
    k AS (SELECT * FROM c WHERE NOT passes AND i IN (SELECT i FROM c WHERE passes))
    SELECT m_page || coalesce((SELECT array_agg(DISTINCT i) FROM c WHERE passes), '{}'), r_page || coalesce(array_agg(i), '{}'),
           r_id || coalesce(array_agg(record_id), '{}'), r_type || coalesce(array_agg(record_type), '{}'),
           r_key || coalesce(array_agg(record_key), '{}'), r_data || coalesce(array_agg(data), '{}'), r_hash || coalesce(array_agg(data_hash), '{}')
      INTO m_page, r_page, r_id, r_type, r_key, r_data, r_hash FROM k;
  END IF;
  IF cardinality(m_page) > 0 THEN
    SELECT array_agg(m.i), array_agg(p_key[m.i]), array_agg(v_ver[m.i]) INTO m_page, v_keys, v_vers FROM unnest(m_page) AS m(i) WHERE m.i = ANY (v_ok);
    IF m_page IS NOT NULL THEN
      IF lost <> '{}' THEN
        SELECT coalesce(array_agg(r.p), '{}'), coalesce(array_agg(r.id), '{}'), coalesce(array_agg(r.ty), '{}'), coalesce(array_agg(r.k), '{}'),
               coalesce(array_agg(r.d), '{}'), coalesce(array_agg(r.h), '{}') INTO r_page, r_id, r_type, r_key, r_data, r_hash
          FROM unnest(r_page, r_id, r_type, r_key, r_data, r_hash) AS r(p, id, ty, k, d, h) WHERE r.p = ANY (v_ok);
      END IF;
      SELECT * INTO rec FROM merge_records(p_source, p_crawl, t, m_page, v_keys, v_vers, r_page, r_id, r_type, r_key, r_data, r_hash);
      INSERT INTO counter_deltas SELECT p_source, p_crawl, x.name, x.n FROM (VALUES ('records_added', rec.added), ('records_changed', rec.changed),
        ('records_missing', rec.missing)) AS x(name, n) WHERE x.n > 0;
    END IF;
  END IF;
  -- 5. links: anti-join first (most are known), then the ordered insert; beyond max_urls they are counted, not stored
  IF cardinality(l_key) > 0 THEN
    WITH n AS MATERIALIZED (
      SELECT DISTINCT ON (l.k) l.* FROM unnest(l_page, l_key, l_authority, l_url, l_depth, l_is_sitemap) AS l(p, k, a, u, d, sm)
       WHERE l.p = ANY (v_ok) AND NOT EXISTS (SELECT 1 FROM urls u WHERE u.source_id = p_source AND u.url_key = l.k)
       ORDER BY l.k, l.d, l.p),
    hx AS (INSERT INTO hosts (authority) SELECT DISTINCT a FROM n WHERE NOT EXISTS (SELECT 1 FROM hosts h WHERE h.authority = n.a)
            ORDER BY 1 ON CONFLICT DO NOTHING)
    SELECT array_agg(p ORDER BY k), array_agg(k ORDER BY k), array_agg(a ORDER BY k), array_agg(u ORDER BY k), array_agg(d ORDER BY k),
           array_agg(sm ORDER BY k)
      INTO l_page, l_key, l_authority, l_url, l_depth, l_is_sitemap FROM n;
    IF l_key IS NOT NULL THEN
      SELECT s.max_urls - coalesce((SELECT sum(n) FROM counts c WHERE c.source_id = p_source
                                       AND c.crawl_id = '00000000-0000-0000-0000-000000000000'), 0)
        INTO v_room FROM sources s WHERE s.source_id = p_source;
      v_over := greatest(0, cardinality(l_key) - greatest(v_room, 0));
      IF cardinality(l_key) > v_over THEN
        WITH i AS (
          INSERT INTO urls (source_id, url_key, host_id, url, depth, due_at, discovered_from, is_sitemap)
          SELECT p_source, x.k, h.host_id, x.u, x.d, t, p.k, x.sm
            FROM unnest(l_page, l_key, l_authority, l_url, l_depth, l_is_sitemap) WITH ORDINALITY AS x(p, k, a, u, d, sm, o)
            JOIN unnest(p_key) WITH ORDINALITY AS p(k, i) ON p.i = x.p JOIN hosts h ON h.authority = x.a
           WHERE x.o <= cardinality(l_key) - v_over ORDER BY x.k
          ON CONFLICT DO NOTHING RETURNING host_id)
        SELECT sum(c), array_agg(host_id) INTO new_urls, n_host FROM (SELECT host_id, count(*) AS c FROM i GROUP BY 1) g;
        new_urls := coalesce(new_urls, 0);
      END IF;
    END IF;
  END IF;
  -- 6. the pages themselves (leased to us alone: never waits) and their leases
  WITH u AS (
    UPDATE urls u SET lease_token = NULL, state = p.state, reason = p.reason, due_at = p.due, tries = p.tries,
           expiries = CASE WHEN p.checked THEN 0 ELSE u.expiries END,
           outcome = CASE WHEN p.state IN ('accepted', 'unchanged', 'rejected') THEN p.state ELSE u.outcome END,
           outcome_reason = CASE WHEN p.state IN ('accepted', 'unchanged', 'rejected') THEN p.reason ELSE u.outcome_reason END,
           last_fetched_at = CASE WHEN p.checked THEN t ELSE u.last_fetched_at END,
           accepted_at = CASE WHEN p.state IN ('accepted', 'unchanged') THEN t ELSE u.accepted_at END,
           etag = CASE WHEN p.validators THEN p.etag ELSE u.etag END,
           last_modified = CASE WHEN p.validators THEN p.modified ELSE u.last_modified END,
           is_noindex = CASE WHEN p.validators THEN p.noindex ELSE u.is_noindex END,
           robots_tags = CASE WHEN p.validators THEN p.tags ELSE u.robots_tags END,
           version_id = p.version
      FROM unnest(p_token, p_key, p_state, p_reason, p_due, p_tries, p_is_checked, p_validators, p_etag, p_last_modified, p_is_noindex, p_robots_tags, v_ver)
           WITH ORDINALITY AS p(tok, k, state, reason, due, tries, checked, validators, etag, modified, noindex, tags, version, i)
     WHERE p.i = ANY (v_ok) AND u.source_id = p_source AND u.url_key = p.k AND u.lease_token = p.tok
    RETURNING u.host_id, u.state, u.due_at)
  SELECT array_agg(host_id), array_agg((state <> 'queued')::int::smallint), array_agg(due_at) INTO w_host, w_lane, w_due FROM u;
  IF coalesce(cardinality(w_host), 0) <> cardinality(v_ok) THEN
    RAISE EXCEPTION 'a leased URL was changed without its lease lock' USING ERRCODE = 'serialization_failure'; END IF;
  WITH l AS (UPDATE leases l SET remaining = l.remaining - x.n FROM (
      SELECT p_token[i] AS tok, count(*)::int AS n FROM unnest(v_ok) i GROUP BY 1) x
    WHERE l.lease_token = x.tok RETURNING l.lease_token, l.host_id, l.remaining)
  SELECT array_agg(lease_token), array_agg(host_id) INTO v_end, v_end_hosts FROM l WHERE remaining <= 0;
  -- 7. this crawl's counters
  INSERT INTO counter_deltas
    SELECT p_source, p_crawl, x.name, x.n FROM (
      SELECT CASE p.state WHEN 'queued' THEN 'retried' ELSE p.state END AS name, count(*) AS n
        FROM unnest(p_state, p_is_sitemap) WITH ORDINALITY AS p(state, sitemap, i) WHERE p.i = ANY (v_ok) AND NOT p.sitemap GROUP BY 1
      UNION ALL SELECT 'versions', count(*) FROM unnest(v_page) AS v(i) WHERE v.i = ANY (v_ok)
      UNION ALL SELECT 'new_urls', new_urls
      UNION ALL SELECT 'over_max_urls', v_over) x WHERE x.n > 0;
  -- 8. freed slots, the hosts' health, then the wake-ups: the only contended rows come last, in order
  IF n_host IS NOT NULL THEN
    w_host := w_host || n_host; w_lane := w_lane || array_fill(0::smallint, ARRAY[cardinality(n_host)]);
    w_due := w_due || array_fill(t, ARRAY[cardinality(n_host)]);
  END IF;
  SELECT coalesce(array_agg(h), '{}'), coalesce(array_agg(failed), '{}'), coalesce(array_agg(ok), '{}') INTO h_host, h_failed, h_ok FROM (
    SELECT p.h, count(*) FILTER (WHERE p.f)::int AS failed, bool_or(NOT p.f) AS ok FROM unnest(p_host, p_host_failed) WITH ORDINALITY AS p(h, f, i)
     WHERE p.f IS NOT NULL AND p.i = ANY (v_ok) GROUP BY 1) x;
  PERFORM settle(coalesce(v_end, '{}'), coalesce(v_end_hosts, '{}'), array_fill(p_source, ARRAY[cardinality(w_host)]), w_host, w_lane, w_due,
                 h_host, h_failed, h_ok);
  -- whoever blocked them: a slot that was used starts again only after a commit, so no worker goes on through a rest
  SELECT array_agg(h.host_id), array_agg(h.blocked_until) INTO blocked_hosts, blocked_until
    FROM hosts h WHERE h.host_id = ANY (p_host) AND h.blocked_until > t;
END $$;
