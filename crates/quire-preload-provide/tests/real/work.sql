PRAGMA cache_size = -200000;
CREATE TABLE t(a INTEGER PRIMARY KEY, b INTEGER, c TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 250000)
  INSERT INTO t SELECT i, (i * 7919) % 100003, printf('%d-%s', i, hex(i * 31)) FROM n;
CREATE INDEX by_b ON t(b);
CREATE INDEX by_c ON t(c);
SELECT count(*), sum(b), max(c) FROM t;
SELECT b, count(*), min(c) FROM t GROUP BY b ORDER BY count(*) DESC, b LIMIT 10;
DELETE FROM t WHERE a % 3 = 0;
UPDATE t SET c = c || c WHERE b % 5 = 0;
SELECT x.a, y.a FROM t x JOIN t y ON x.b = y.b AND x.a < y.a ORDER BY x.c LIMIT 20;
SELECT count(DISTINCT substr(c, 1, 4)), total(length(c)) FROM t;
VACUUM;
PRAGMA integrity_check;
SELECT count(*), sum(b) FROM t;
