-- What `claim` calls per host is PL/pgSQL also where SQL would do: before PostgreSQL 18 a SQL function is planned at every call.

-- The exact min(due_at) of a queue: one index probe.
CREATE OR REPLACE FUNCTION queue_next_due(p_source int, p_host int, p_lane smallint) RETURNS timestamptz LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN coalesce((SELECT u.due_at FROM urls u
    WHERE u.source_id = p_source AND u.host_id = p_host AND (u.state <> 'queued') = (p_lane = 1)
      AND u.lease_token IS NULL AND u.due_at IS NOT NULL ORDER BY u.due_at LIMIT 1), 'infinity');
END $$;

-- Seconds between starts that a host's trouble asks for; half an hour without an answer or a rest is forgiven.
CREATE OR REPLACE FUNCTION adaptive_seconds(h hosts, p_now timestamptz) RETURNS float8 LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  RETURN CASE WHEN greatest(h.observed_at, h.throttled_at, h.blocked_until) > p_now - interval '30 minutes'
              THEN extract(epoch FROM h.adaptive_delay) ELSE 0 END;
END $$;

-- The adaptive delay as it is put in force: in doublings, because each change waits until no lease of the host lives.
CREATE OR REPLACE FUNCTION adaptive_step(h hosts, p_now timestamptz) RETURNS interval LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE v float8 := adaptive_seconds(h, p_now);
BEGIN
  RETURN CASE WHEN v > 0 THEN make_interval(secs => least(60, power(2, round(ln(v) / ln(2))))) ELSE '0' END;
END $$;

-- A host after some more answers. The mean is geometric and the smoothing by answers: one slow page is no slow host.
--   slow: answers take over a second and three times the host's own low (which rises within hours, so that a host that is slow by
--   nature is not in trouble): one request at a time, on average. failing: over a fifth of the answers speak against the host: twice
--   the delay, once the last doubling is in force. Else the delay falls by a tenth per answer, down to none.
CREATE OR REPLACE FUNCTION observed(h hosts, p_answers int, p_log_seconds float8, p_failures int, p_now timestamptz) RETURNS hosts
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE v float8 := adaptive_seconds(h, p_now); v_keep float8; v_is_in_force boolean := h.min_delay >= adaptive_step(h, p_now);
BEGIN
  IF p_answers > 0 THEN
    v_keep := CASE WHEN h.latency > 0 THEN power(0.8, least(p_answers, 100)) ELSE 0 END;
    h.latency := exp(v_keep * ln(coalesce(h.latency, 1)) + (1 - v_keep) * p_log_seconds / p_answers);
    h.usual_latency := CASE WHEN h.usual_latency < h.latency
      THEN h.usual_latency + (h.latency - h.usual_latency) * least(extract(epoch FROM p_now - h.observed_at), 60) / 3600 ELSE h.latency END;
  END IF;
  v_keep := power(0.8, least(p_answers + p_failures, 100));
  h.error_share := v_keep * h.error_share + (1 - v_keep) * p_failures / (p_answers + p_failures);
  IF p_failures > 0 AND h.error_share > 0.3 THEN
    IF v_is_in_force THEN v := greatest(2 * v, h.latency, 0.25); h.adaptive_reason := 'failing'; END IF;
  ELSIF h.latency > 1 AND h.latency > 3 * h.usual_latency THEN
    IF h.latency > v THEN v := h.latency; h.adaptive_reason := 'slow'; END IF;
  ELSE
    v := v * power(0.9, least(p_answers, 100));
  END IF;
  h.adaptive_delay := make_interval(secs => CASE WHEN v >= 0.1 THEN least(v, 60) ELSE 0 END);
  IF h.adaptive_delay = '0' THEN h.adaptive_reason := NULL; END IF;
  h.observed_at := p_now;
  RETURN h;
END $$;

-- What each source and its robots.txt ask of a host, and what its own trouble does: the strictest wins. A paused source asks
-- nothing, unless it still crawls.
CREATE OR REPLACE FUNCTION host_budget(h hosts, OUT slots smallint, OUT min_delay interval, OUT adaptive_delay interval)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE v_is_adaptive boolean;
BEGIN
  SELECT min(s.slots), max(greatest(s.min_delay, p.crawl_delay)), bool_or(s.adaptive) INTO slots, min_delay, v_is_adaptive
    FROM sources s LEFT JOIN host_policies p ON p.source_id = s.source_id AND p.host_id = h.host_id
   WHERE EXISTS (SELECT 1 FROM queues q WHERE q.host_id = h.host_id AND q.source_id = s.source_id)
     AND (s.paused_at IS NULL OR EXISTS (SELECT 1 FROM crawls c WHERE c.source_id = s.source_id AND c.state = 'open'));
  adaptive_delay := CASE WHEN v_is_adaptive THEN adaptive_step(h, statement_timestamp()) ELSE '0' END;
  min_delay := CASE WHEN min_delay < adaptive_delay THEN adaptive_delay ELSE min_delay END;
END $$;

-- How long a host rests after the n-th outage in a row: 5 s, doubling, at most 10 minutes, with up to 10 % jitter.
CREATE OR REPLACE FUNCTION outage_rest(p_outages int) RETURNS interval LANGUAGE sql VOLATILE AS $$
  SELECT least(interval '5 seconds' * power(2, least(p_outages, 20) - 1), interval '10 minutes') * (1 + 0.1 * random())
$$;

-- The one writer path to hosts and queues for all that ends leases or makes URLs due: ONE ordered pass over hosts, then ONE
-- ordered pass over queues (two passes deadlock). The leases named in p_end are already locked by the caller.
--   f_host, f_failed, f_ok: per host, failures in a row added by this commit, and whether a success broke the row.
CREATE OR REPLACE FUNCTION settle(
  p_end uuid[], p_end_hosts int[], w_source int[], w_host int[], w_lane smallint[], w_due timestamptz[],
  f_host int[] DEFAULT '{}', f_failed int[] DEFAULT '{}', f_ok boolean[] DEFAULT '{}') RETURNS void LANGUAGE plpgsql AS $$
DECLARE t timestamptz := clock_timestamp(); v_last int[] := '{}';
BEGIN
  IF p_end <> '{}' THEN
    WITH d AS (DELETE FROM leases WHERE lease_token = ANY (p_end) RETURNING source_id, host_id)
    SELECT array_agg(d.source_id), array_agg(d.host_id) INTO v_last, p_end_hosts FROM d;
  END IF;
  IF coalesce(p_end_hosts, '{}') <> '{}' OR f_host <> '{}' THEN
    PERFORM 1 FROM hosts WHERE host_id = ANY (p_end_hosts || f_host) ORDER BY host_id FOR NO KEY UPDATE;
    -- No start of an ended lease can be later than now (its worker stops at expires_at), so now + delay is safe.
    UPDATE hosts h SET next_request_at = greatest(h.next_request_at, t + h.min_delay),
           last_source_id = e.source_id, yield_until = t + interval '2 seconds'
      FROM (SELECT DISTINCT ON (x.h) x.h, x.s AS source_id FROM unnest(p_end_hosts, v_last) AS x(h, s)) e
     WHERE h.host_id = e.h;
    UPDATE hosts h SET failures = CASE WHEN f.ok THEN 0 ELSE h.failures + f.failed END,
           outages = CASE WHEN f.ok THEN 0 WHEN h.failures + f.failed >= 5 AND h.blocked_until <= t THEN h.outages + 1 ELSE h.outages END,
           blocked_until = CASE WHEN NOT f.ok AND h.failures + f.failed >= 5 AND h.blocked_until <= t
                                THEN t + outage_rest(h.outages + 1) ELSE h.blocked_until END,
           blocked_reason = CASE WHEN NOT f.ok AND h.failures + f.failed >= 5 AND h.blocked_until <= t
                                 THEN 'host_down' ELSE h.blocked_reason END
      FROM (SELECT x.h, sum(x.failed) AS failed, bool_or(x.ok) AS ok FROM unnest(f_host, f_failed, f_ok) AS x(h, failed, ok) GROUP BY 1) f
     WHERE h.host_id = f.h;
  END IF;
  -- DO UPDATE ... WHERE locks the row even when it changes nothing: this closes the lost wake-up race with `claim`.
  INSERT INTO queues AS q (source_id, host_id, lane, next_due_at, not_before)
    SELECT x.s, x.h, x.l, min(x.d), max(x.nb) FROM (
      SELECT s, h, l, d, 'epoch'::timestamptz AS nb FROM unnest(w_source, w_host, w_lane, w_due) AS w(s, h, l, d) WHERE d IS NOT NULL
      UNION ALL
      SELECT e.source_id, e.host_id, e.lane, 'infinity', greatest(h.blocked_until, CASE WHEN EXISTS (
               SELECT 1 FROM leases l WHERE l.host_id = h.host_id) THEN t ELSE h.next_request_at END)
        FROM queues e JOIN hosts h USING (host_id) WHERE e.host_id = ANY (p_end_hosts || f_host)) x
     GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
  ON CONFLICT (source_id, host_id, lane) DO UPDATE
     SET next_due_at = least(q.next_due_at, excluded.next_due_at),
         not_before = CASE WHEN excluded.not_before > 'epoch' THEN excluded.not_before ELSE q.not_before END
   WHERE q.next_due_at > excluded.next_due_at OR (excluded.not_before > 'epoch' AND q.not_before <> excluded.not_before);
END $$;

-- URLs of a source became due at these hosts: its queues there may be claimed.
CREATE OR REPLACE FUNCTION wake(p_source int, p_host int[], p_lane smallint, p_due timestamptz) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM settle('{}', '{}', array_fill(p_source, ARRAY[cardinality(p_host)]), p_host,
                 array_fill(p_lane, ARRAY[cardinality(p_host)]), array_fill(p_due, ARRAY[cardinality(p_host)]));
END $$;
