create table t(a integer primary key, b integer, c text);
with recursive n(i) as (select 1 union all select i+1 from n where i<1000000) insert into t select i, (i*7919)%1000003, 'row '||i from n;
create index tb on t(b);
select count(*), sum(x.a) from t x join t y on x.b=y.a;
