-- Extends leases that still live; what is not returned is lost: stop its requests at once.
CREATE OR REPLACE FUNCTION renew(p_tokens uuid[], p_lease_for interval) RETURNS TABLE (r_token uuid, r_expires_at timestamptz)
LANGUAGE sql AS $$
  WITH held AS (SELECT lease_token FROM leases WHERE lease_token = ANY (p_tokens) AND expires_at > clock_timestamp()
                 ORDER BY lease_token FOR NO KEY UPDATE)
  UPDATE leases l SET expires_at = clock_timestamp() + p_lease_for FROM held
   WHERE l.lease_token = held.lease_token RETURNING l.lease_token, l.expires_at
$$;

-- Ends leases whose rows the caller has locked: their URLs get back the state and due time that they had.
-- p_counted: nobody saw what their worker died of, so each URL pays an expiry; at p_max_expiries it is quarantined.
CREATE OR REPLACE FUNCTION end_leases(p_tokens uuid[], p_counted boolean, p_max_expiries int DEFAULT 5)
RETURNS TABLE (r_released bigint, r_quarantined bigint) LANGUAGE plpgsql AS $$
DECLARE v_source int[]; v_host int[]; v_lane smallint[]; v_due timestamptz[]; v_hosts int[];
BEGIN
  WITH b AS (SELECT l.lease_token, l.source_id, l.lane, k.url_key
               FROM leases l CROSS JOIN LATERAL unnest(l.url_keys) AS k(url_key) WHERE l.lease_token = ANY (p_tokens)),
  u AS (
    UPDATE urls u SET lease_token = NULL, expiries = u.expiries + p_counted::int,
           state = CASE WHEN p_counted AND u.expiries + 1 >= p_max_expiries THEN 'quarantined'
                        WHEN b.lane = 0 THEN 'queued' ELSE coalesce(u.outcome, 'queued') END,
           reason = CASE WHEN p_counted AND u.expiries + 1 >= p_max_expiries THEN 'poison' ELSE u.reason END,
           due_at = CASE WHEN p_counted AND u.expiries + 1 >= p_max_expiries THEN NULL ELSE u.due_at END
      FROM b WHERE u.source_id = b.source_id AND u.url_key = b.url_key AND u.lease_token = b.lease_token
    RETURNING u.source_id, u.host_id, u.state, u.due_at)
  SELECT count(*) FILTER (WHERE state <> 'quarantined'), count(*) FILTER (WHERE state = 'quarantined'),
         coalesce(array_agg(source_id), '{}'), coalesce(array_agg(host_id), '{}'),
         coalesce(array_agg((state <> 'queued')::int::smallint), '{}'), coalesce(array_agg(due_at), '{}')
    INTO r_released, r_quarantined, v_source, v_host, v_lane, v_due FROM u;
  SELECT array_agg(host_id) INTO v_hosts FROM leases WHERE lease_token = ANY (p_tokens);
  IF v_hosts IS NOT NULL THEN PERFORM settle(p_tokens, v_hosts, v_source, v_host, v_lane, v_due); END IF;
  RETURN NEXT;
END $$;

-- The target of a redirect joins the lease of the page that led to it, where nobody has visited it: what was fetched for the one is
-- stored for the other. Its host is the lease's. False where it was visited before, is leased, set aside, or beyond max_urls.
CREATE OR REPLACE FUNCTION adopt(p_token uuid, p_key uuid, p_url text, p_depth smallint, p_from uuid) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE l leases%ROWTYPE; v_room bigint; v_state text; v_token uuid;
BEGIN
  SELECT * INTO l FROM leases WHERE lease_token = p_token FOR NO KEY UPDATE;
  IF NOT FOUND THEN RETURN false; END IF;
  SELECT state, lease_token INTO v_state, v_token FROM urls WHERE source_id = l.source_id AND url_key = p_key;
  IF v_token = p_token THEN RETURN true; END IF;             -- a repetition, or given up by the caller
  IF v_state IS NULL THEN
    SELECT s.max_urls - coalesce((SELECT sum(n) FROM counts c WHERE c.source_id = l.source_id
                                     AND c.crawl_id = '00000000-0000-0000-0000-000000000000'), 0)
      INTO v_room FROM sources s WHERE s.source_id = l.source_id;
    IF v_room <= 0 THEN RETURN false; END IF;
    INSERT INTO urls (source_id, url_key, host_id, url, depth, due_at, discovered_from, state, lease_token)
      VALUES (l.source_id, p_key, l.host_id, p_url, p_depth, clock_timestamp(), p_from, 'active', p_token) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN RETURN false; END IF;
    INSERT INTO counter_deltas VALUES (l.source_id, l.crawl_id, 'new_urls', 1);
  ELSE
    UPDATE urls SET state = 'active', lease_token = p_token
     WHERE ctid = ANY (ARRAY(SELECT ctid FROM urls WHERE source_id = l.source_id AND url_key = p_key AND state = 'queued' AND outcome IS NULL
                                AND tries = 0 AND expiries = 0 AND NOT is_sitemap FOR UPDATE SKIP LOCKED));
    IF NOT FOUND THEN RETURN false; END IF;
  END IF;
  UPDATE leases SET url_keys = url_keys || p_key, remaining = remaining + 1 WHERE lease_token = p_token;
  RETURN true;
END $$;

-- Gives leases back uncounted. Returns how many URLs; a lost token changes nothing.
CREATE OR REPLACE FUNCTION release(p_tokens uuid[]) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE n bigint;
BEGIN
  SELECT array_agg(lease_token) INTO p_tokens FROM (
    SELECT lease_token FROM leases WHERE lease_token = ANY (p_tokens) ORDER BY lease_token FOR UPDATE) x;
  IF p_tokens IS NULL THEN RETURN 0; END IF;
  SELECT r_released INTO n FROM end_leases(p_tokens, false);
  RETURN n;
END $$;

-- Gives back, uncounted, what a dead worker or a dead run holds.
CREATE OR REPLACE FUNCTION release_worker(p_worker text) RETURNS bigint LANGUAGE sql AS $$
  SELECT release((SELECT coalesce(array_agg(lease_token), '{}') FROM leases WHERE worker_id = p_worker))
$$;
CREATE OR REPLACE FUNCTION release_crawl(p_crawl uuid) RETURNS bigint LANGUAGE sql AS $$
  SELECT release((SELECT coalesce(array_agg(lease_token), '{}') FROM leases WHERE crawl_id = p_crawl))
$$;

-- Leases that ran out go back, counted: a lost machine tells nobody which page killed it.
CREATE OR REPLACE FUNCTION requeue_expired(p_limit int DEFAULT 32, p_max_expiries int DEFAULT 5)
RETURNS TABLE (r_leases int, r_released bigint, r_quarantined bigint) LANGUAGE plpgsql AS $$
DECLARE v_tokens uuid[];
BEGIN
  SELECT array_agg(lease_token) INTO v_tokens FROM (
    SELECT lease_token FROM leases WHERE expires_at < clock_timestamp() ORDER BY lease_token LIMIT p_limit FOR UPDATE SKIP LOCKED) x;
  r_leases := coalesce(cardinality(v_tokens), 0); r_released := 0; r_quarantined := 0;
  IF r_leases > 0 THEN
    SELECT e.r_released, e.r_quarantined INTO r_released, r_quarantined FROM end_leases(v_tokens, true, p_max_expiries) e;
  END IF;
  RETURN NEXT;
END $$;

-- The page that a dead worker had in hand pays for the death: p_max_expiries deaths quarantine it (poison), a stall beyond
-- its page_timeout does so at once (timeout). Returns its new state, or null when the lease was lost meanwhile.
CREATE OR REPLACE FUNCTION charge(p_token uuid, p_key uuid, p_stalled boolean, p_max_expiries int DEFAULT 5) RETURNS text LANGUAGE plpgsql AS $$
DECLARE l leases%ROWTYPE; u urls%ROWTYPE; v_end uuid[] := '{}'; v_hosts int[] := '{}';
BEGIN
  SELECT * INTO l FROM leases WHERE lease_token = p_token FOR UPDATE;
  IF NOT FOUND THEN RETURN NULL; END IF;
  UPDATE urls x SET lease_token = NULL, expiries = x.expiries + 1,
         state = CASE WHEN p_stalled OR x.expiries + 1 >= p_max_expiries THEN 'quarantined' WHEN l.lane = 0 THEN 'queued' ELSE coalesce(x.outcome, 'queued') END,
         reason = CASE WHEN p_stalled THEN 'timeout' WHEN x.expiries + 1 >= p_max_expiries THEN 'poison' ELSE x.reason END,
         due_at = CASE WHEN p_stalled OR x.expiries + 1 >= p_max_expiries THEN NULL ELSE x.due_at END
   WHERE x.source_id = l.source_id AND x.url_key = p_key AND x.lease_token = p_token RETURNING * INTO u;
  IF NOT FOUND THEN RETURN NULL; END IF;
  UPDATE leases SET remaining = remaining - 1 WHERE lease_token = p_token;
  IF l.remaining <= 1 THEN v_end := ARRAY[p_token]; v_hosts := ARRAY[l.host_id]; END IF;
  PERFORM settle(v_end, v_hosts, ARRAY[u.source_id], ARRAY[u.host_id], ARRAY[(u.state <> 'queued')::int::smallint], ARRAY[u.due_at]);
  RETURN u.state;
END $$;
