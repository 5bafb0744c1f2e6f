-- Seeds, sitemap entries and links of re-extracted pages: known URLs stay as they are. Returns the number of new URLs.
CREATE OR REPLACE FUNCTION discover(p_source int, p_keys uuid[], p_authorities text[], p_urls text[], p_depths smallint[], p_from uuid[], p_is_sitemap boolean DEFAULT false)
RETURNS int LANGUAGE plpgsql AS $$
DECLARE n int; v_host int[]; v_room bigint; t timestamptz := clock_timestamp();
BEGIN
  SELECT greatest(0, s.max_urls - coalesce((SELECT sum(c.n) FROM counts c WHERE c.source_id = p_source
           AND c.crawl_id = '00000000-0000-0000-0000-000000000000'), 0)) INTO v_room FROM sources s WHERE s.source_id = p_source;
  -- the anti-join: ON CONFLICT DO NOTHING would wait for whoever is updating the host's row
  INSERT INTO hosts (authority) SELECT DISTINCT a FROM unnest(p_authorities) a
    WHERE NOT EXISTS (SELECT 1 FROM hosts h WHERE h.authority = a) ORDER BY 1 ON CONFLICT DO NOTHING;
  WITH i AS (
    INSERT INTO urls (source_id, url_key, host_id, url, depth, due_at, discovered_from, is_sitemap)
    SELECT p_source, x.k, h.host_id, x.u, x.d, t, x.f, p_is_sitemap FROM (
        SELECT DISTINCT ON (k) k, a, u, d, f FROM unnest(p_keys, p_authorities, p_urls, p_depths, p_from) AS y(k, a, u, d, f)
         WHERE NOT EXISTS (SELECT 1 FROM urls o WHERE o.source_id = p_source AND o.url_key = y.k) ORDER BY k, d LIMIT v_room) x
      JOIN hosts h ON h.authority = x.a ORDER BY x.k
    ON CONFLICT DO NOTHING RETURNING host_id)
  SELECT sum(c), array_agg(host_id) INTO n, v_host FROM (SELECT host_id, count(*) AS c FROM i GROUP BY 1) g;
  IF n > 0 THEN
    PERFORM wake(p_source, v_host, 0::smallint, t);
  END IF;
  RETURN coalesce(n, 0);
END $$;

-- Nothing of this host starts before p_until (every worker, run and source); never shortens a longer rest.
CREATE OR REPLACE FUNCTION block_host(p_host int, p_until timestamptz, p_reason text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  UPDATE hosts SET blocked_reason = CASE WHEN p_until > blocked_until THEN p_reason ELSE blocked_reason END,
         blocked_until = greatest(blocked_until, p_until) WHERE host_id = p_host;
  PERFORM 1 FROM queues WHERE host_id = p_host ORDER BY source_id, host_id, lane FOR NO KEY UPDATE;
  UPDATE queues SET not_before = greatest(not_before, p_until) WHERE host_id = p_host;
END $$;

-- A source claims nothing of this host before p_until, since its robots.txt cannot be had; the host's other sources go on.
CREATE OR REPLACE FUNCTION rest_source(p_source int, p_host int, p_until timestamptz) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM 1 FROM queues WHERE source_id = p_source AND host_id = p_host ORDER BY lane FOR NO KEY UPDATE;
  UPDATE queues SET rests_until = p_until WHERE source_id = p_source AND host_id = p_host AND rests_until < p_until;
END $$;

-- What a source's robots.txt group at an origin asks of its host (null: nothing). Says whether leases live that were given under a smaller delay: then
-- the host rests for the delay, and the worker is to give its leases back; the next lease is paced by it. Workers of other sources may
-- never look at this robots.txt: the rest is long enough for their heartbeats to see it.
CREATE OR REPLACE FUNCTION ask_crawl_delay(p_source int, p_host int, p_origin text, p_delay interval) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  IF p_delay IS NULL THEN DELETE FROM host_policies WHERE source_id = p_source AND host_id = p_host AND origin = p_origin; RETURN false; END IF;
  INSERT INTO host_policies AS p (source_id, host_id, origin, crawl_delay) VALUES (p_source, p_host, p_origin, p_delay)
    ON CONFLICT (host_id, source_id, origin) DO UPDATE SET crawl_delay = excluded.crawl_delay WHERE p.crawl_delay <> excluded.crawl_delay;
  PERFORM 1 FROM hosts h WHERE h.host_id = p_host AND h.min_delay < p_delay AND EXISTS (SELECT 1 FROM leases l WHERE l.host_id = p_host);
  IF NOT FOUND THEN RETURN false; END IF;
  PERFORM block_host(p_host, clock_timestamp() + greatest(p_delay, CASE WHEN EXISTS (
    SELECT 1 FROM leases l WHERE l.host_id = p_host AND l.source_id <> p_source) THEN interval '3 seconds' END), 'crawl_delay');
  RETURN true;
END $$;

-- 429 and 503: the host rests for what it asked (p_asked, at least a second: a 429 costs no try, so nothing else bounds them), or for 60 s doubling
-- while trouble goes on, with 10 % jitter, at most p_cap; half an hour without rest or trouble is forgiven. What made it say so was
-- too fast: afterwards it is asked half as often, see `observed`. Returns until when.
CREATE OR REPLACE FUNCTION throttle_host(p_host int, p_asked interval, p_cap interval) RETURNS timestamptz LANGUAGE plpgsql AS $$
DECLARE h hosts%ROWTYPE; t timestamptz := clock_timestamp(); v_until timestamptz; v_n int; v_delay float8;
BEGIN
  SELECT * INTO h FROM hosts WHERE host_id = p_host FOR NO KEY UPDATE;
  v_n := CASE WHEN greatest(h.throttled_at, h.blocked_until) > t - interval '30 minutes' THEN h.throttles ELSE 0 END;
  v_delay := adaptive_seconds(h, t);
  IF h.blocked_until <= t THEN v_n := v_n + 1; v_delay := least(greatest(2 * v_delay, 0.25), 60); END IF;   -- answers of one burst count once
  v_until := t + least(p_cap, CASE WHEN p_asked IS NOT NULL THEN greatest(p_asked, interval '1 second')
    ELSE interval '60 seconds' * power(2, least(greatest(v_n, 1), 20) - 1) * (1 + 0.1 * random()) END);
  UPDATE hosts SET throttles = v_n, throttled_at = t, adaptive_delay = make_interval(secs => v_delay),
         adaptive_reason = CASE WHEN v_delay > 0 THEN 'throttled' END WHERE host_id = p_host;
  PERFORM block_host(p_host, v_until, 'throttled');
  RETURN (SELECT blocked_until FROM hosts WHERE host_id = p_host);
END $$;

-- What workers saw of hosts since they last told: answers, the sum of their seconds' logarithms, failures. Returns the hosts that took
-- it in; for one whose row is locked no heartbeat waits.
CREATE OR REPLACE FUNCTION observe_hosts(p_host int[], p_answers int[], p_log_seconds float8[], p_failures int[]) RETURNS SETOF int
LANGUAGE plpgsql AS $$
DECLARE h hosts%ROWTYPE; o hosts%ROWTYPE; i int;
BEGIN
  FOR h IN SELECT * FROM hosts WHERE host_id = ANY (p_host) ORDER BY host_id FOR NO KEY UPDATE SKIP LOCKED LOOP
    i := array_position(p_host, h.host_id);
    o := observed(h, p_answers[i], p_log_seconds[i], p_failures[i], clock_timestamp());
    UPDATE hosts SET latency = o.latency, usual_latency = o.usual_latency, error_share = o.error_share, observed_at = o.observed_at,
           adaptive_delay = o.adaptive_delay, adaptive_reason = o.adaptive_reason WHERE host_id = h.host_id;
    RETURN NEXT h.host_id;
  END LOOP;
END $$;

-- Hosts of these leases where nothing more is to be started: put to rest for longer than claims look ahead, or in a trouble that
-- asks for more delay than the leases keep.
CREATE OR REPLACE FUNCTION to_drain(p_tokens uuid[], p_horizon interval) RETURNS SETOF int LANGUAGE plpgsql STABLE AS $$
DECLARE h hosts%ROWTYPE;
BEGIN
  FOR h IN SELECT * FROM hosts WHERE host_id IN (SELECT host_id FROM leases WHERE lease_token = ANY (p_tokens))
             AND (blocked_until > clock_timestamp() + p_horizon OR adaptive_delay > '0') LOOP
    IF h.blocked_until > clock_timestamp() + p_horizon OR (SELECT b.min_delay FROM host_budget(h) b) > h.min_delay THEN
      RETURN NEXT h.host_id;
    END IF;
  END LOOP;
END $$;

-- A limit ended the crawl: URLs that were never visited become cancelled with the reason; queued revisits keep their outcome and
-- due time. At most p_limit per call; call until it returns 0. The queue's lock comes first and URLs are only tried (SKIP LOCKED).
CREATE OR REPLACE FUNCTION cancel_queued(p_source int, p_reason text, p_limit int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE q record; n int; v_left int := p_limit; v_revisit timestamptz;
BEGIN
  FOR q IN SELECT host_id FROM queues WHERE source_id = p_source AND lane = 0 AND next_due_at < 'infinity' ORDER BY host_id LOOP
    EXIT WHEN v_left <= 0;
    PERFORM 1 FROM queues WHERE source_id = p_source AND host_id = q.host_id ORDER BY lane FOR NO KEY UPDATE;
    WITH u AS (
      UPDATE urls u SET state = coalesce(u.outcome, 'cancelled'), reason = CASE WHEN u.outcome IS NULL THEN p_reason ELSE u.outcome_reason END,
             due_at = CASE WHEN u.outcome IS NULL THEN NULL ELSE u.due_at END, tries = 0
       WHERE u.ctid = ANY (ARRAY(SELECT x.ctid FROM urls x WHERE x.source_id = p_source AND x.host_id = q.host_id
              AND (x.state <> 'queued') = false AND x.lease_token IS NULL AND x.due_at IS NOT NULL
              ORDER BY x.due_at LIMIT v_left FOR UPDATE SKIP LOCKED))
      RETURNING u.due_at)
    SELECT count(*), min(due_at) INTO n, v_revisit FROM u;
    v_left := v_left - n;
    UPDATE queues SET next_due_at = queue_next_due(p_source, q.host_id, 0::smallint) WHERE source_id = p_source AND host_id = q.host_id AND lane = 0;
    IF v_revisit IS NOT NULL THEN
      PERFORM settle('{}', '{}', ARRAY[p_source], ARRAY[q.host_id], ARRAY[1::smallint], ARRAY[v_revisit]);
    END IF;
  END LOOP;
  RETURN p_limit - v_left;
END $$;

-- A new crawl allows again what a limit of an earlier one cancelled. At most p_limit per call; call until it returns 0.
CREATE OR REPLACE FUNCTION reopen_cancelled(p_source int, p_reasons text[], p_limit int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE n int; v_host int[]; t timestamptz := clock_timestamp();
BEGIN
  WITH u AS (
    UPDATE urls u SET state = 'queued', reason = NULL, due_at = t, tries = 0
     WHERE u.ctid = ANY (ARRAY(SELECT x.ctid FROM urls x WHERE x.source_id = p_source AND x.state = 'cancelled' AND x.reason = ANY (p_reasons)
                               LIMIT p_limit FOR UPDATE SKIP LOCKED))
    RETURNING u.host_id)
  SELECT count(*), array_agg(DISTINCT host_id) INTO n, v_host FROM u;
  IF n > 0 THEN
    PERFORM wake(p_source, v_host, 0::smallint, t);
  END IF;
  RETURN n;
END $$;

-- What an origin's robots.txt denied is queued again, to be looked at by its new rules before anything is requested (p_source null: of
-- every source). At most p_limit per call; call until it returns 0.
CREATE OR REPLACE FUNCTION reopen_denied(p_origin text, p_source int, p_limit int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE n int; v_source int[]; v_host int; t timestamptz := clock_timestamp();
BEGIN
  SELECT host_id INTO v_host FROM hosts WHERE authority = split_part(p_origin, '/', 3);
  WITH u AS (
    UPDATE urls u SET state = 'queued', reason = NULL, due_at = t, tries = 0
     WHERE u.ctid = ANY (ARRAY(
       SELECT x.ctid FROM sources s JOIN urls x ON x.source_id = s.source_id AND x.state = 'cancelled' AND x.reason = 'robots'
              AND x.host_id = v_host AND x.url ^@ (p_origin || '/')
        WHERE p_source IS NULL OR s.source_id = p_source LIMIT p_limit FOR UPDATE OF x SKIP LOCKED))
    RETURNING u.source_id)
  SELECT count(*), array_agg(DISTINCT source_id) INTO n, v_source FROM u;
  IF n > 0 THEN
    PERFORM settle('{}', '{}', v_source, array_fill(v_host, ARRAY[cardinality(v_source)]),
                   array_fill(0::smallint, ARRAY[cardinality(v_source)]), array_fill(t, ARRAY[cardinality(v_source)]));
  END IF;
  RETURN n;
END $$;

-- Makes every visited page due at p_due (a forced crawl's opening), in slices by url_key; pages checked since then stay. Returns the
-- last key looked at, null when the slice was the last.
CREATE OR REPLACE FUNCTION make_due(p_source int, p_due timestamptz, p_after uuid, p_limit int) RETURNS uuid LANGUAGE plpgsql AS $$
DECLARE v_last uuid; v_host int[];
BEGIN
  SELECT max(url_key::text)::uuid INTO v_last FROM (
    SELECT url_key FROM urls WHERE source_id = p_source AND (p_after IS NULL OR url_key > p_after) ORDER BY url_key LIMIT p_limit) x;
  IF v_last IS NULL THEN RETURN NULL; END IF;
  WITH u AS (
    UPDATE urls u SET due_at = p_due
     WHERE u.ctid = ANY (ARRAY(SELECT x.ctid FROM urls x WHERE x.source_id = p_source AND (p_after IS NULL OR x.url_key > p_after) AND x.url_key <= v_last
             AND x.state IN ('accepted', 'unchanged', 'rejected') AND (x.due_at IS NULL OR x.due_at > p_due)
             AND (x.last_fetched_at IS NULL OR x.last_fetched_at < p_due) ORDER BY x.url_key FOR UPDATE SKIP LOCKED))
    RETURNING u.host_id)
  SELECT array_agg(DISTINCT host_id) INTO v_host FROM u;
  IF v_host IS NOT NULL THEN
    PERFORM wake(p_source, v_host, 1::smallint, p_due);
  END IF;
  RETURN v_last;
END $$;

-- Visited pages that a sitemap says have changed since they were last fetched become due: at the crawl's opening, so that this crawl
-- takes them, but no sooner than p_min after the last check, and never later than they were. Writes nothing where nothing moves.
CREATE OR REPLACE FUNCTION make_changed_due(p_crawl uuid, p_min interval, p_keys uuid[], p_changed timestamptz[]) RETURNS int LANGUAGE plpgsql AS $$
DECLARE c crawls%ROWTYPE; n int; v_host int[]; v_due timestamptz[];
BEGIN
  SELECT * INTO STRICT c FROM crawls WHERE crawl_id = p_crawl;
  WITH u AS (
    UPDATE urls u SET due_at = greatest(c.opened_at, u.last_fetched_at + p_min)
     WHERE u.ctid = ANY (ARRAY(
       SELECT x.ctid FROM unnest(p_keys, p_changed) AS m(k, changed) JOIN urls x ON x.source_id = c.source_id AND x.url_key = m.k
        WHERE x.state IN ('accepted', 'unchanged', 'rejected') AND NOT x.is_sitemap AND x.last_fetched_at < m.changed
          AND x.due_at > greatest(c.opened_at, x.last_fetched_at + p_min) ORDER BY x.url_key FOR UPDATE OF x SKIP LOCKED))
    RETURNING u.host_id, u.due_at)
  SELECT sum(g.moved), array_agg(g.host_id), array_agg(g.due) INTO n, v_host, v_due
    FROM (SELECT host_id, count(*) AS moved, min(due_at) AS due FROM u GROUP BY 1) g;
  IF n > 0 THEN
    PERFORM settle('{}', '{}', array_fill(c.source_id, ARRAY[cardinality(v_host)]), v_host,
                   array_fill(1::smallint, ARRAY[cardinality(v_host)]), v_due);
  END IF;
  RETURN coalesce(n, 0);
END $$;

-- A person releases quarantined URLs: queued, due now, with a clean slate. p_url: a LIKE pattern or null. Call until it returns 0.
CREATE OR REPLACE FUNCTION release_quarantined(p_source int, p_reason text, p_url text, p_limit int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE n int; v_host int[]; t timestamptz := clock_timestamp();
BEGIN
  WITH u AS (
    UPDATE urls u SET state = 'queued', reason = NULL, due_at = t, tries = 0, expiries = 0
     WHERE u.ctid = ANY (ARRAY(SELECT x.ctid FROM urls x WHERE x.source_id = p_source AND x.state = 'quarantined'
             AND (p_reason IS NULL OR x.reason = p_reason) AND (p_url IS NULL OR x.url LIKE p_url) LIMIT p_limit FOR UPDATE SKIP LOCKED))
    RETURNING u.host_id)
  SELECT count(*), array_agg(DISTINCT host_id) INTO n, v_host FROM u;
  IF n > 0 THEN
    PERFORM wake(p_source, v_host, 0::smallint, t);
  END IF;
  RETURN n;
END $$;

-- The end of a crawl: records that no page yields any more go, if no more than max_drop of the last good count would; else they
-- are held. One call per record type; p_force applies what was held. Returns what was missing, of how many, and whether applied.
-- The records are locked in their order first: a person may release a hold while a crawl commits.
CREATE OR REPLACE FUNCTION apply_removals(p_source int, p_crawl uuid, p_type text, p_max_drop real, p_force boolean DEFAULT false,
  OUT missing bigint, OUT total bigint, OUT is_applied boolean) LANGUAGE plpgsql AS $$
DECLARE t timestamptz := clock_timestamp();
BEGIN
  PERFORM 1 FROM records WHERE source_id = p_source AND record_type = p_type AND missing_since IS NOT NULL AND gone_at IS NULL
    ORDER BY record_id FOR NO KEY UPDATE;
  SELECT count(*) INTO missing FROM records WHERE source_id = p_source AND record_type = p_type AND missing_since IS NOT NULL AND gone_at IS NULL;
  IF missing = 0 THEN
    total := 0; is_applied := true;
    UPDATE holds SET released_at = t WHERE source_id = p_source AND record_type = p_type AND released_at IS NULL;
    RETURN;
  END IF;
  SELECT count(*) INTO total FROM records WHERE source_id = p_source AND record_type = p_type AND gone_at IS NULL;
  is_applied := p_force OR missing <= p_max_drop::numeric * total;
  IF is_applied THEN
    WITH g AS (UPDATE records SET gone_at = t WHERE source_id = p_source AND record_type = p_type AND missing_since IS NOT NULL AND gone_at IS NULL
               RETURNING record_id)
    UPDATE record_versions v SET valid_to = greatest(t, v.valid_from + interval '1 microsecond') FROM g WHERE v.record_id = g.record_id AND v.valid_to IS NULL;
    UPDATE holds SET released_at = t WHERE source_id = p_source AND record_type = p_type AND released_at IS NULL;
  ELSE
    INSERT INTO holds AS h (source_id, record_type, crawl_id, missing_count, record_count, max_drop, held_at)
      VALUES (p_source, p_type, p_crawl, missing, total, p_max_drop, t)
    ON CONFLICT (source_id, record_type) WHERE released_at IS NULL
      DO UPDATE SET missing_count = excluded.missing_count, record_count = excluded.record_count, max_drop = excluded.max_drop;
  END IF;
END $$;
