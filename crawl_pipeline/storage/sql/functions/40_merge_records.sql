-- Makes each page's records what it yields now. A record belongs to the page that first yielded it, until that page stops;
-- then to the next page that claims it; with none left it is marked missing_since (the end of the crawl applies or holds that).
-- Writes nothing where nothing changed. Pages are those leased to (or re-extracted by) the caller alone.
--   p_page: the caller's number of each page; r_page: the page of each record.
CREATE OR REPLACE FUNCTION merge_records(
  p_source int, p_crawl uuid, p_now timestamptz, p_page int[], p_key uuid[], p_version bigint[],
  r_page int[], r_id uuid[], r_type text[], r_key text[], r_data jsonb[], r_hash bytea[],
  OUT added int, OUT changed int, OUT missing int) LANGUAGE plpgsql AS $$
DECLARE v_new uuid[]; v_touched uuid[]; v_changed uuid[];
BEGIN
  added := 0; changed := 0; missing := 0;
  -- 1. lock every record yielded now or claimed before, and insert the new ones, in ONE pass ordered by record_id
  WITH y AS (
    SELECT DISTINCT ON (r.id) r.id, r.typ, r.k, r.d, r.h, p.key, p.version
      FROM unnest(r_page, r_id, r_type, r_key, r_data, r_hash) AS r(page, id, typ, k, d, h)
      JOIN unnest(p_page, p_key, p_version) AS p(page, key, version) USING (page)
     ORDER BY r.id, r.page),
  o AS (
    SELECT DISTINCT ON (x.record_id) x.record_id, x.record_type, x.record_key, x.data, x.data_hash, x.url_key, x.version_id
      FROM record_pages rp JOIN records x USING (record_id)
     WHERE rp.source_id = p_source AND rp.url_key = ANY (p_key) AND NOT rp.record_id = ANY (r_id) ORDER BY x.record_id),
  i AS (
    INSERT INTO records AS r (record_id, source_id, record_type, record_key, data, data_hash, url_key, version_id, first_seen_at, last_changed_at)
    SELECT a.id, p_source, a.typ, a.k, a.d, a.h, a.key, a.version, p_now, p_now
      FROM (SELECT * FROM y UNION ALL SELECT * FROM o) a ORDER BY a.id
    ON CONFLICT (record_id) DO UPDATE SET data = r.data WHERE false
    RETURNING r.record_id)
  SELECT coalesce(array_agg(record_id), '{}') INTO v_new FROM i;
  added := cardinality(v_new);
  -- 2. the claims of these pages, and which records they move: those that are new or come back, and those whose owner drops them or
  --    says something else. Another page's word moves nothing, so that a record on every page costs no more than any other.
  WITH d AS (
    DELETE FROM record_pages rp USING unnest(p_page, p_key) AS p(page, key)
     WHERE rp.source_id = p_source AND rp.url_key = p.key
       AND NOT EXISTS (SELECT 1 FROM unnest(r_page, r_id) AS r(page, id) WHERE r.page = p.page AND r.id = rp.record_id)
    RETURNING rp.record_id, rp.url_key)
  SELECT v_new || coalesce(array_agg(DISTINCT record_id), '{}') INTO v_touched FROM (
    SELECT d.record_id FROM d JOIN records x ON x.record_id = d.record_id AND x.url_key = d.url_key
    UNION ALL
    SELECT x.record_id FROM unnest(r_page, r_id, r_hash) AS r(page, id, h) JOIN unnest(p_page, p_key) AS p(page, key) USING (page)
      JOIN records x ON x.record_id = r.id
     WHERE x.missing_since IS NOT NULL OR x.gone_at IS NOT NULL OR (x.url_key = p.key AND x.data_hash <> r.h)) t;
  INSERT INTO record_pages AS rp (source_id, url_key, record_id, data_hash, data, claimed_at)
    SELECT DISTINCT ON (p.key, r.id) p_source, p.key, r.id, r.h, CASE WHEN x.data_hash <> r.h THEN r.d END, p_now
      FROM unnest(r_page, r_id, r_data, r_hash) AS r(page, id, d, h)
      JOIN unnest(p_page, p_key) AS p(page, key) USING (page) JOIN records x ON x.record_id = r.id
     ORDER BY p.key, r.id
  ON CONFLICT (source_id, url_key, record_id) DO UPDATE SET data_hash = excluded.data_hash, data = excluded.data
   WHERE rp.data_hash <> excluded.data_hash;
  -- 3. whose data stand: the owner's claim, else the oldest other claim. A claim keeps its own data exactly where they differ from
  --    what stands: what it would stand for must be known when its turn comes.
  WITH w AS (
    SELECT DISTINCT ON (rp.record_id) rp.record_id, rp.url_key, coalesce(y.d, rp.data, x.data) AS data, rp.data_hash, x.data AS old_data,
           coalesce(y.version, u.version_id, x.version_id) AS version_id, (x.data_hash <> rp.data_hash OR x.gone_at IS NOT NULL) AS is_changed
      FROM record_pages rp JOIN records x USING (record_id)
      LEFT JOIN (SELECT r.id, r.d, p.key, p.version FROM unnest(r_page, r_id, r_data) AS r(page, id, d)
                   JOIN unnest(p_page, p_key, p_version) AS p(page, key, version) USING (page)) y
             ON y.id = rp.record_id AND y.key = rp.url_key
      LEFT JOIN urls u ON u.source_id = rp.source_id AND u.url_key = rp.url_key AND y.id IS NULL
     WHERE rp.record_id = ANY (v_touched)
     ORDER BY rp.record_id, (rp.url_key = x.url_key) DESC, rp.claimed_at, rp.url_key),
  k AS (
    UPDATE record_pages rp SET data = CASE WHEN rp.data_hash <> w.data_hash THEN coalesce(rp.data, w.old_data) END
      FROM w WHERE rp.record_id = w.record_id AND (rp.data IS NULL) = (rp.data_hash <> w.data_hash)),
  c AS (
    UPDATE records r SET url_key = w.url_key, data = w.data, data_hash = w.data_hash, version_id = w.version_id,
           last_changed_at = CASE WHEN w.is_changed THEN p_now ELSE r.last_changed_at END, missing_since = NULL, gone_at = NULL
      FROM w WHERE r.record_id = w.record_id
       AND (w.is_changed OR r.url_key <> w.url_key OR r.missing_since IS NOT NULL)
    RETURNING r.record_id, w.is_changed)
  SELECT coalesce(array_agg(record_id) FILTER (WHERE is_changed), '{}') INTO v_changed FROM c;
  changed := cardinality(v_changed);
  WITH m AS (
    UPDATE records r SET missing_since = p_now WHERE r.record_id = ANY (v_touched) AND r.missing_since IS NULL AND r.gone_at IS NULL
       AND NOT EXISTS (SELECT 1 FROM record_pages rp WHERE rp.record_id = r.record_id) RETURNING 1)
  SELECT count(*) INTO missing FROM m;
  -- 4. history
  IF added + changed > 0 THEN
    -- p_now was read before the locks were had: another's version may be younger. History must not run backwards.
    UPDATE record_versions v SET valid_to = greatest(p_now, v.valid_from + interval '1 microsecond')
     WHERE v.record_id = ANY (v_changed) AND v.valid_to IS NULL;
    INSERT INTO record_versions (record_id, source_id, valid_from, data, url_key, version_id, crawl_id)
      SELECT r.record_id, p_source, greatest(p_now, (SELECT max(v.valid_to) FROM record_versions v WHERE v.record_id = r.record_id)),
             r.data, r.url_key, r.version_id, p_crawl
        FROM records r WHERE r.record_id = ANY (v_new || v_changed);
  END IF;
END $$;
