-- How many more pages a crawl may take in hand: max_pages less those accepted or unchanged and those leased, in one snapshot.
CREATE OR REPLACE FUNCTION pages_left(p_crawl uuid) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN (SELECT cr.max_pages - coalesce((SELECT sum(c.n) FROM counts c WHERE c.source_id = cr.source_id AND c.crawl_id = p_crawl
                                     AND c.name IN ('accepted', 'unchanged')), 0)
                      - coalesce((SELECT sum(l.remaining) FROM leases l WHERE l.crawl_id = p_crawl), 0)
    FROM crawls cr WHERE cr.crawl_id = p_crawl);
END $$;

-- A source among others that wait for a host (unpaused, in a live crawl, with something due): how many others there are, the most
-- slots that are its fair part now, and how many others have their turn before it. Whoever holds less than an even part comes
-- before those who hold one; among equals it goes round, and the source whose lease ended last is the last.
CREATE OR REPLACE FUNCTION host_turn(h hosts, p_source int, p_now timestamptz, OUT others int, OUT ahead int, OUT fair int)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
  WITH held AS (SELECT l.source_id, sum(cardinality(l.slot_nos))::int AS n FROM leases l WHERE l.host_id = h.host_id GROUP BY 1),
  w AS (
    SELECT q.source_id FROM queues q JOIN crawls o ON o.source_id = q.source_id AND o.state = 'open'
      JOIN sources s ON s.source_id = q.source_id AND s.paused_at IS NULL
     WHERE q.host_id = h.host_id AND q.source_id <> p_source AND q.next_due_at <= p_now AND q.rests_until <= p_now
       AND (q.lane = 0 OR q.next_due_at <= o.opened_at) AND o.heartbeat_at > p_now - interval '30 seconds'
     GROUP BY 1),
  m AS (SELECT count(*)::int AS others, coalesce((SELECT n FROM held WHERE source_id = p_source), 0) AS mine FROM w)
  SELECT m.others,
         (SELECT count(*)::int FROM w LEFT JOIN held USING (source_id)
           WHERE coalesce(held.n, 0) < greatest(1, h.slots / (m.others + 1))
             AND (m.mine >= greatest(1, h.slots / (m.others + 1))
                  OR (w.source_id <= coalesce(h.last_source_id, 0), w.source_id) < (p_source <= coalesce(h.last_source_id, 0), p_source))),
         CASE WHEN m.others = 0 THEN h.slots ELSE ceil(h.slots::float8 / (m.others + 1))::int - m.mine END
    INTO others, ahead, fair FROM m;
END $$;

-- Leases of up to p_want due URLs over several hosts, one row per URL; URLs of one lease share o_token.
--   p_batch: most URLs of one lease; p_share: most slots of one lease; p_max_slots: most slots of all; p_is_idle: the worker holds
--   nothing, so that it may take a suspect (two or more expiries), alone. Claims nothing when the crawl is closed or belongs to another run.
-- Its cost follows hosts looked at and URLs taken, never the backlog.
CREATE OR REPLACE FUNCTION claim(
  p_crawl uuid, p_run text, p_worker text, p_want int, p_batch int, p_share int, p_lease_for interval, p_is_idle boolean,
  p_horizon interval DEFAULT '1 second', p_max_hosts int DEFAULT 64, p_max_slots int DEFAULT 1000000)
RETURNS TABLE (
  o_token uuid, o_host int, o_authority text, o_expires_at timestamptz, o_first_starts timestamptz[], o_period interval, o_delay interval,
  o_failures int, o_key uuid, o_url text, o_is_sitemap boolean, o_depth smallint, o_tries smallint, o_expiries smallint, o_outcome text, o_outcome_reason text,
  o_last_fetched_at timestamptz, o_etag text, o_last_modified text, o_version bigint, o_body_hash bytea, o_content_hash bytea, o_extractor text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  cr crawls%ROWTYPE; c record; h hosts%ROWTYPE; b record; t timestamptz; v_left int := p_want; v_used smallint[]; v_first timestamptz;
  v_leases int; v_others int; v_ahead int; v_fair int; v_free smallint[]; v_tids tid[]; v_exp smallint[]; v_batch int; v_take int;
  v_keys uuid[]; v_due timestamptz; v_per interval; v_hosts int := 0; v_room bigint; v_upto timestamptz; v_start timestamptz;
  v_slots int := p_max_slots;
BEGIN
  PERFORM 1 FROM leases WHERE expires_at < clock_timestamp() LIMIT 1;
  IF FOUND THEN PERFORM requeue_expired(32); END IF;
  SELECT * INTO cr FROM crawls WHERE crawl_id = p_crawl AND state = 'open' AND run_id = p_run;
  IF NOT FOUND OR cr.deadline_at <= clock_timestamp() THEN RETURN; END IF;
  -- 0. Whoever holds a suspect gets nothing beside it. max_pages: never more in hand than may still be accepted; near the limit
  --    one claimer at a time.
  IF NOT p_is_idle THEN
    PERFORM 1 FROM leases l JOIN urls u ON u.source_id = l.source_id AND u.url_key = l.url_keys[1] AND u.lease_token = l.lease_token
      WHERE l.worker_id = p_worker AND cardinality(l.url_keys) = 1 AND u.expiries >= 2;
    IF FOUND THEN RETURN; END IF;
  END IF;
  v_room := pages_left(p_crawl);
  IF v_room < 8 * p_want THEN
    IF NOT pg_try_advisory_xact_lock(7261002, cr.source_id) THEN RETURN; END IF;
    v_left := least(v_left, pages_left(p_crawl));
  END IF;
  -- 1. candidates, without locks: the oldest ready queues; of the revisits only what was due by the cutoff
  FOR c IN
    SELECT k.host_id, k.lane FROM (
      (SELECT q.host_id, q.lane, q.ready_at FROM queues q
        WHERE q.source_id = cr.source_id AND q.lane = 0 AND q.ready_at <= statement_timestamp() + p_horizon
        ORDER BY q.ready_at LIMIT p_max_hosts * 2)
      UNION ALL
      (SELECT q.host_id, q.lane, q.ready_at FROM queues q
        WHERE q.source_id = cr.source_id AND q.lane = 1 AND q.ready_at <= statement_timestamp() + p_horizon
          AND q.next_due_at <= cr.opened_at
        ORDER BY q.ready_at LIMIT p_max_hosts * 2)) k
    ORDER BY k.ready_at, k.lane
  LOOP
    EXIT WHEN v_left <= 0 OR v_hosts >= p_max_hosts OR v_slots <= 0;
    -- 2. THE GUARD: the host's row lock. All that follows are NEW statements, so that their snapshots see every lease
    --    committed before the lock was had.
    SELECT * INTO h FROM hosts WHERE host_id = c.host_id FOR NO KEY UPDATE SKIP LOCKED;
    CONTINUE WHEN NOT FOUND;
    PERFORM 1 FROM queues q WHERE q.source_id = cr.source_id AND q.host_id = c.host_id AND q.lane = c.lane FOR NO KEY UPDATE SKIP LOCKED;
    CONTINUE WHEN NOT FOUND;
    t := clock_timestamp();
    SELECT coalesce(array_agg(s.n), '{}'), min(l.expires_at), count(DISTINCT l.lease_token)
      INTO v_used, v_first, v_leases FROM leases l CROSS JOIN LATERAL unnest(l.slot_nos) AS s(n) WHERE l.host_id = c.host_id;
    -- 3. the host's budget is the strictest of its sources'; it changes only while no lease of the host lives
    SELECT * INTO b FROM host_budget(h);
    IF (h.slots, h.min_delay) IS DISTINCT FROM (b.slots, b.min_delay) THEN
      IF b.slots IS NULL OR v_leases > 0 THEN
        UPDATE queues q SET not_before = t + p_horizon WHERE q.source_id = cr.source_id AND q.host_id = c.host_id AND q.lane = c.lane;
        CONTINUE;
      END IF;
      h.next_request_at := h.next_request_at + greatest(b.min_delay - h.min_delay, interval '0');
      h.slots := b.slots; h.min_delay := b.min_delay;
    END IF;
    -- 4. others that wait for this host: a fair part each; a freed slot is first kept for whoever's turn it is
    SELECT w.others, w.ahead, least(p_share, w.fair) INTO v_others, v_ahead, v_fair FROM host_turn(h, cr.source_id, t) w;
    IF t >= h.yield_until THEN v_ahead := 0; END IF;
    v_fair := least(v_fair, h.slots - cardinality(v_used) - v_ahead);
    IF v_fair <= 0 AND h.slots > cardinality(v_used) THEN
      UPDATE queues q SET not_before = greatest(CASE WHEN v_ahead > 0 THEN least(h.yield_until, t + p_horizon / 2) END, t + p_horizon / 4)
       WHERE q.source_id = cr.source_id AND q.host_id = c.host_id AND q.lane = c.lane;
      CONTINUE;
    END IF;
    SELECT array_agg(k ORDER BY k) INTO v_free FROM (
      SELECT k::smallint FROM generate_series(0, h.slots - 1) k WHERE NOT k = ANY (v_used) ORDER BY k LIMIT least(greatest(v_fair, 0), v_slots)) x;
    v_batch := least(p_batch, v_left);
    IF v_others > 0 THEN v_batch := least(v_batch, 16); END IF;
    IF h.failures >= 5 THEN                       -- an outage: one probe at a time
      v_batch := 1; v_free := v_free[1:1];
      IF v_leases > 0 THEN v_free := NULL; END IF;
    END IF;
    v_first := greatest(h.blocked_until, CASE WHEN v_leases = 0 THEN h.next_request_at END,
                        CASE WHEN v_free IS NULL THEN v_first + p_horizon END);
    IF v_free IS NULL OR v_first > t + p_horizon THEN   -- the hint was too early: put it to sleep until the truth
      UPDATE queues q SET not_before = v_first WHERE q.source_id = cr.source_id AND q.host_id = c.host_id AND q.lane = c.lane;
      CONTINUE;
    END IF;
    v_per := h.min_delay * h.slots;
    IF h.min_delay > '0' THEN                     -- no more than can be started within one lease; less where the delay soon changes
      v_batch := least(v_batch, greatest(1, floor(extract(epoch FROM p_lease_for) * CASE WHEN b.adaptive_delay > '0' THEN 0.2 ELSE 0.8 END / extract(epoch FROM v_per) * cardinality(v_free))::int));
    END IF;
    -- 5. the batch, the longest due first
    v_upto := CASE c.lane WHEN 0 THEN t ELSE least(t, cr.opened_at) END;
    SELECT array_agg(x.tid), array_agg(x.expiries) INTO v_tids, v_exp FROM (
      SELECT u.ctid AS tid, u.expiries FROM urls u
       WHERE u.source_id = cr.source_id AND u.host_id = c.host_id AND (u.state <> 'queued') = (c.lane = 1)
         AND u.lease_token IS NULL AND u.due_at IS NOT NULL AND u.due_at <= v_upto
         AND (u.expiries < 2 OR (p_is_idle AND v_hosts = 0))
       ORDER BY u.due_at LIMIT v_batch FOR UPDATE SKIP LOCKED) x;
    IF v_tids IS NULL THEN
      v_first := CASE WHEN p_is_idle THEN t ELSE t + p_horizon / 4 END;
    ELSE
      -- suspects: equal numbers of expiries only, a quarter of the batch per expiry, alone from two on
      v_take := 0;
      WHILE v_take < least(cardinality(v_tids), CASE WHEN v_exp[1] >= 2 THEN 1 ELSE greatest(1, p_batch >> (2 * v_exp[1])) END)
            AND v_exp[v_take + 1] = v_exp[1] LOOP v_take := v_take + 1; END LOOP;
      v_free := v_free[1:greatest(1, least(cardinality(v_free), v_take))];
      o_token := gen_random_uuid(); o_host := c.host_id; o_authority := h.authority; o_expires_at := t + p_lease_for;
      o_period := v_per; o_delay := h.min_delay; o_failures := h.failures;
      v_start := greatest(t, h.blocked_until);    -- it was looked ahead: the rest may still have a moment to go
      IF v_leases = 0 THEN
        h.grid_anchor := greatest(v_start, h.next_request_at);
        UPDATE hosts SET grid_anchor = h.grid_anchor, slots = h.slots, min_delay = h.min_delay WHERE host_id = c.host_id;
      END IF;
      IF h.min_delay > '0' THEN                   -- the first start of each slot of the share: its next grid point
        SELECT array_agg(h.grid_anchor + h.min_delay * k + v_per * ceil(greatest(0,
                 extract(epoch FROM v_start - h.grid_anchor - h.min_delay * k) / extract(epoch FROM v_per)))::float8 ORDER BY k)
          INTO o_first_starts FROM unnest(v_free) k;
      ELSE o_first_starts := array_fill(greatest(v_start, h.grid_anchor), ARRAY[cardinality(v_free)]); END IF;
      v_keys := '{}';
      FOR o_key, o_url, o_is_sitemap, o_depth, o_tries, o_expiries, o_outcome, o_outcome_reason, o_last_fetched_at,
          o_etag, o_last_modified, o_version, o_body_hash,
          o_content_hash, o_extractor IN
        WITH u AS (
          UPDATE urls u SET state = 'active', lease_token = o_token WHERE u.ctid = ANY (v_tids[1:v_take])
          RETURNING u.url_key, u.url, u.is_sitemap, u.depth, u.tries, u.expiries, u.outcome, u.outcome_reason, u.last_fetched_at, u.etag,
                    u.last_modified, u.version_id, u.due_at)
        SELECT u.url_key, u.url, u.is_sitemap, u.depth, u.tries, u.expiries, u.outcome, u.outcome_reason, u.last_fetched_at, u.etag,
               u.last_modified, u.version_id, v.body_hash, e.content_hash, e.extractor_version
          FROM u LEFT JOIN page_versions v ON v.version_id = u.version_id LEFT JOIN extractions e ON e.version_id = u.version_id
         ORDER BY u.due_at
      LOOP v_keys := v_keys || o_key; RETURN NEXT; END LOOP;
      INSERT INTO leases (lease_token, source_id, host_id, crawl_id, run_id, worker_id, lane, slot_nos, url_keys, remaining, claimed_at, expires_at)
        VALUES (o_token, cr.source_id, c.host_id, p_crawl, p_run, p_worker, c.lane, v_free, v_keys, cardinality(v_keys), t, o_expires_at);
      v_left := v_left - v_take; v_hosts := v_hosts + 1; v_slots := v_slots - cardinality(v_free);
      IF v_exp[1] >= 2 THEN v_left := 0; END IF;
      v_first := CASE WHEN cardinality(v_used) + cardinality(v_free) >= h.slots
                      THEN p_horizon + (SELECT min(l.expires_at) FROM leases l WHERE l.host_id = c.host_id) ELSE t END;
    END IF;
    -- 6. put the queue back behind the others
    v_due := queue_next_due(cr.source_id, c.host_id, c.lane);
    UPDATE queues q SET next_due_at = v_due, not_before = v_first WHERE q.source_id = cr.source_id AND q.host_id = c.host_id AND q.lane = c.lane;
  END LOOP;
END $$;

-- A slot of a host for one request that is no page's: a robots.txt that redirects to that host. It is a lease without URLs, so that the
-- host's budget holds; to be released after the request. o_start: when it may start. No row: not now (no slot, a rest, another's claim).
CREATE OR REPLACE FUNCTION claim_slot(p_crawl uuid, p_run text, p_worker text, p_authority text, p_lease_for interval)
RETURNS TABLE (o_token uuid, o_start timestamptz) LANGUAGE plpgsql AS $$
DECLARE cr crawls%ROWTYPE; h hosts%ROWTYPE; b record; t timestamptz; v_used smallint[]; v_free smallint; v_per interval;
BEGIN
  SELECT * INTO cr FROM crawls WHERE crawl_id = p_crawl AND state = 'open' AND run_id = p_run;
  IF NOT FOUND THEN RETURN; END IF;
  INSERT INTO hosts (authority) SELECT p_authority WHERE NOT EXISTS (SELECT 1 FROM hosts WHERE authority = p_authority) ON CONFLICT DO NOTHING;
  SELECT * INTO h FROM hosts WHERE authority = p_authority FOR NO KEY UPDATE SKIP LOCKED;
  IF NOT FOUND THEN RETURN; END IF;
  t := clock_timestamp();
  SELECT coalesce(array_agg(s.n), '{}') INTO v_used FROM leases l CROSS JOIN LATERAL unnest(l.slot_nos) AS s(n) WHERE l.host_id = h.host_id;
  SELECT * INTO b FROM host_budget(h);            -- as in `claim`: a changed budget waits until no lease of the host lives
  IF b.slots IS NOT NULL AND (h.slots, h.min_delay) IS DISTINCT FROM (b.slots, b.min_delay) THEN
    IF v_used <> '{}' THEN RETURN; END IF;
    h.next_request_at := h.next_request_at + greatest(b.min_delay - h.min_delay, interval '0');
    h.slots := b.slots; h.min_delay := b.min_delay;
  END IF;
  SELECT min(k)::smallint INTO v_free FROM generate_series(0, h.slots - 1) k WHERE NOT k = ANY (v_used);
  IF v_free IS NULL OR h.blocked_until > t OR (v_used <> '{}' AND h.failures >= 5) THEN RETURN; END IF;
  IF v_used = '{}' THEN
    h.grid_anchor := greatest(t, h.next_request_at);
    UPDATE hosts x SET grid_anchor = h.grid_anchor, slots = h.slots, min_delay = h.min_delay WHERE x.host_id = h.host_id;
  END IF;
  v_per := h.min_delay * h.slots; o_start := h.grid_anchor + h.min_delay * v_free;
  IF v_per > '0' THEN o_start := o_start + v_per * ceil(greatest(0, extract(epoch FROM t - o_start) / extract(epoch FROM v_per)))::float8; END IF;
  o_token := gen_random_uuid();
  INSERT INTO leases (lease_token, source_id, host_id, crawl_id, run_id, worker_id, lane, slot_nos, url_keys, remaining, claimed_at, expires_at)
    VALUES (o_token, cr.source_id, h.host_id, p_crawl, p_run, p_worker, 0, ARRAY[v_free], '{}', 0, t, greatest(t, o_start) + p_lease_for);
  RETURN NEXT;
END $$;

-- ONE statement, one snapshot: 'claimable' | 'busy' (a live lease may still find links) | 'waiting' | 'finished'
CREATE OR REPLACE FUNCTION finished(p_crawl uuid) RETURNS TABLE (status text, next_at timestamptz) LANGUAGE sql STABLE AS $$
  WITH c AS (SELECT source_id, opened_at FROM crawls WHERE crawl_id = p_crawl),
  q AS (SELECT least((SELECT q.ready_at FROM queues q, c WHERE q.source_id = c.source_id AND q.lane = 0 ORDER BY q.ready_at LIMIT 1),
                     (SELECT min(q.ready_at) FROM queues q, c WHERE q.source_id = c.source_id AND q.lane = 1 AND q.next_due_at <= c.opened_at)) AS r,
               EXISTS (SELECT 1 FROM leases l WHERE l.crawl_id = p_crawl) AS busy)
  SELECT CASE WHEN r <= statement_timestamp() THEN 'claimable' WHEN busy THEN 'busy' WHEN r < 'infinity' THEN 'waiting' ELSE 'finished' END,
         CASE WHEN r < 'infinity' THEN r END FROM q
$$;
