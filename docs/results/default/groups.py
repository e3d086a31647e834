"""A grouping of 6 million rows and a join in DuckDB: groups.py [ROUNDS]."""
import sys
import duckdb

rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 1
c = duckdb.connect()
c.execute("set threads=2")
c.execute("create table t as select i, (i*7919)%100003 as k, random() as v from range(6000000) r(i)")
for _ in range(rounds):
    print(c.execute("select count(*), sum(s) is not null from (select k, sum(v) s from t group by k)").fetchall())
    print(c.execute("select count(*) from t a join (select distinct k, k%10 as z from t) b on a.k=b.k where b.z=3").fetchall())
