create table t(a integer primary key, b text, c int);
with recursive s(i) as (select 1 union all select i+1 from s where i < 900000)
  insert into t select i, 'text'||i, (i*7919)%100003 from s;
create index x on t(c);
select count(*), sum(length(b)) from t where c in (select c from t where a%7 = 0);
