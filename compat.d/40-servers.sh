# Databases and servers, each with a client.
# shellcheck shell=bash

add sqlite "sqlite3"
sqlite.version() { number_in sqlite3 --version; }
sqlite.run() {
  q sqlite3 x.db "pragma cache_size = -200000; pragma mmap_size = 268435456; create table t(i integer primary key, g, h, s);
    with recursive n(i) as (select 1 union all select i + 1 from n where i < 300000) insert into t select i, i * 7919 % 1009, i * 2654435761 % 4294967296, printf('row %d', i) from n;
    create index a on t(g, h); select g, count(*), sum(h) from t group by g order by g limit 3; select count(*) from t a join t b on a.i = b.h % 300000; select max(s) from t; pragma integrity_check; vacuum; select count(*) from t;"
  q sqlite3 :memory: "create table t(x); with recursive n(i) as (select 1 union all select i + 1 from n where i < 1000000) insert into t select randomblob(50) from n; select count(*), sum(length(x)) from t;"
}

add redis "redis-server" quick
redis.version() { number_in redis-server --version; }
redis.run() {
  local s=$PWD/s
  c() { redis-cli -s "$s" "$@"; }
  serve() { q redis-server --port 0 --unixsocket "$s" --daemonize no --pidfile "$PWD/pid" --dir "$PWD" --save '' --appendonly no --enable-debug-command yes --activedefrag no --logfile "$PWD/log" & server=$!; await bash -c "redis-cli -s '$s' ping | grep -q PONG"; await test -s pid; }
  serve
  c debug populate 400000 k 200
  seq 1 70000 | awk '{ print "SET n" $1 " " $1 * 7919 % 1009; print "ZADD z " $1 " m" $1; print "HSET h" $1 % 1000 " f" $1 " " $1 }' | c --pipe >/dev/null
  c bgsave >/dev/null
  seq 1 100000 | awk '{ print "SET k:" $1 " changed" $1 }' | c --pipe >/dev/null
  await bash -c "redis-cli -s '$s' info persistence | grep -q rdb_bgsave_in_progress:0"
  c info persistence | grep -E 'rdb_last_bgsave_status' | tr -d '\r'
  redis-benchmark -s "$s" -t set,get,lpush,lrange_100 -n 4000 -r 1000 -q >/dev/null
  c del mylist key:__rand_int__ >/dev/null
  c --scan --pattern 'key:*' | xargs redis-cli -s "$s" unlink >/dev/null
  c config set activedefrag yes 2>/dev/null | head -n 1 >/dev/null
  c bgrewriteaof >/dev/null
  sleep 0.3
  await bash -c "redis-cli -s '$s' info persistence | grep -q aof_rewrite_in_progress:0"
  c save
  c debug digest >d1
  c dbsize
  kill -TERM "$(cat pid)"
  wait $server && echo "ended 0" || echo "ended $?"
  rm -f pid
  serve
  c dbsize
  c debug digest >d2
  cmp d1 d2 && echo same
  c shutdown nosave 2>/dev/null || true
  wait $server && echo "ended 0" || echo "ended $?"
}

add memcached "memcached"
memcached.version() { number_in memcached -V; }
memcached.run() {
  local as=()
  if [ "$COMPAT_USER" = root ]; then as=(-u root); fi
  q memcached -s "$PWD/s" -m 300 -t 4 -P "$PWD/pid" -I 2m "${as[@]}" & server=$!
  await test -S s
  await test -s pid
  /usr/bin/python3 -c '
import socket, zlib
s = socket.socket(socket.AF_UNIX); s.connect("s"); f = s.makefile("rwb"); n = 0
for i in range(60000):
  v = (b"%d," % i) * (300 if i % 100 else 100000); f.write(b"set k%d 0 0 %d noreply\r\n" % (i, len(v)) + v + b"\r\n")
f.flush()
for i in range(0, 60000, 37):
  f.write(b"get k%d\r\n" % i); f.flush(); h = f.readline()
  if h != b"END\r\n": n += f.read(int(h.split()[3]) + 2)[:-2] == (b"%d," % i) * (300 if i % 100 else 100000); f.readline()
print(n); f.write(b"flush_all\r\nversion\r\n"); f.flush(); print(f.readline().strip())'
  kill -TERM "$(cat pid)"
  wait $server && echo "ended 0" || echo "ended $?"
}

add nginx "nginx-light curl"
nginx.version() { command -v curl >/dev/null && number_in nginx -v; }
nginx.run() {
  mkdir -p web log
  head -c 30000000 "$COMPAT_DATA/numbers" >web/big
  for i in $(seq 1 200); do echo "page $i" >"web/$i.html"; done
  cat >conf <<CONF
worker_processes 2; daemon off; pid $PWD/pid; error_log $PWD/log/error; events { worker_connections 200; }
$([ "$COMPAT_USER" = root ] && echo 'user root root;')
http { access_log off; gzip on; gzip_types *; gzip_comp_level 2; client_body_temp_path $PWD/log/b; proxy_temp_path $PWD/log/p; fastcgi_temp_path $PWD/log/f; uwsgi_temp_path $PWD/log/u; scgi_temp_path $PWD/log/s;
  proxy_cache_path $PWD/log/cache keys_zone=z:100m;
  server { listen unix:$PWD/s; root $PWD/web; location /cached/ { proxy_pass http://unix:$PWD/s:/; proxy_cache z; proxy_cache_valid 200 1m; } } }
CONF
  q nginx -c "$PWD/conf" -e "$PWD/log/error" & server=$!
  await test -S s
  await test -s pid
  get() { curl -s --unix-socket s "http://x/$1"; }
  get big | sha1sum
  curl -s --compressed --unix-socket s http://x/big | sha1sum
  for i in $(seq 1 30); do get "cached/$i.html"; get "cached/$i.html"; done | sha1sum
  kill -HUP "$(cat pid)"
  sleep 0.5
  get 7.html
  kill -QUIT "$(cat pid)"
  wait $server && echo "ended 0" || echo "ended $?"
}

postgres_bin() { local d; for d in /usr/lib/postgresql/*/bin; do if [ -x "$d/postgres" ]; then echo "$d"; return; fi; done; return 1; }
add postgresql "postgresql" quick
postgresql.version() { local d; d=$(postgres_bin) && number_in "$d/postgres" --version; }
postgresql.run() {
  # As root: the server refuses root, so it changes the user, under Quire.
  local bin as=() s=$PWD/sock
  bin=$(postgres_bin)
  mkdir -p sock data
  if [ "$COMPAT_USER" = root ]; then as=(setpriv --reuid=65534 --regid=65534 --clear-groups); chown -R 65534:65534 ../; fi
  q "${as[@]}" "$bin/initdb" -D data -A trust -U me -N >/dev/null
  q "${as[@]}" "$bin/postgres" -D data -k "$s" -c listen_addresses= -c shared_buffers=200MB -c fsync=off -c jit=on -c jit_above_cost=1000 -c max_parallel_workers_per_gather=2 -c min_parallel_table_scan_size=1MB >log 2>&1 & server=$!
  await "$bin/psql" -h "$s" -U me -c 'select 1' postgres
  p() { q "$bin/psql" -h "$s" -U me -q -At -v ON_ERROR_STOP=1 "$@" postgres; }
  q "$bin/pgbench" -h "$s" -U me -i -q -s 4 postgres >/dev/null 2>&1
  q "$bin/pgbench" -h "$s" -U me -n -c 4 -j 2 -t 500 postgres 2>/dev/null | grep -E 'processed|failed'
  p -c "select sum(abalance) = (select sum(bbalance) from pgbench_branches) from pgbench_accounts"
  p -c "set work_mem = '150MB'; create table t as select i, (i::bigint * 7919 % 100003)::int g, md5(i::text) s from generate_series(1, 300000) i; create index on t(s); select count(*), sum(c) from (select g, count(*) c from t group by g) x; select s from t order by s limit 2; select count(*) from t a join t b on a.i = b.g; select g, i from t where s like 'abc%' order by i limit 3"
  p -c 'vacuum analyze t'
  p -c "do \$\$ declare r int := 0; begin for i in 1..300000 loop r := (r + i) % 1009; end loop; raise exception 'r %', r; end \$\$" 2>&1 | grep ERROR || true
  kill -INT "$(head -n 1 data/postmaster.pid)"
  wait $server && echo "ended 0" || echo "ended $?"
  grep -aE 'PANIC|signal|terminated' log || true
}

add mariadb "mariadb-server"
mariadb.version() { number_in mariadbd --version | head -n 1; }
mariadb.run() {
  local as=()
  if [ "$COMPAT_USER" = root ]; then as=(--user=root); fi
  q mariadb-install-db --no-defaults "${as[@]}" --datadir="$PWD/data" --auth-root-authentication-method=normal --skip-test-db --skip-name-resolve >/dev/null 2>&1
  q mariadbd --no-defaults "${as[@]}" --datadir="$PWD/data" --socket="$PWD/s" --skip-networking --pid-file="$PWD/pid" --innodb-buffer-pool-size=200M --innodb-flush-log-at-trx-commit=0 >log 2>&1 & server=$!
  await mariadb --no-defaults -S s -u root -e 'select 1'
  q mariadb --no-defaults -S s -u root -N -e "create database d; use d; create table t(i int primary key, g int, s varchar(40)) engine=innodb; insert into t select seq, seq * 7919 % 100003, md5(seq) from seq_1_to_80000;
    create index a on t(s); select count(*), sum(c) from (select g, count(*) c from t group by g) x; select s from t order by s limit 2; update t set g = g + 1 where i % 3 = 0; select sum(g) from t; select count(*) from t a join t b on a.i = b.g; check table t"
  kill -TERM "$(cat pid)"
  wait $server && echo "ended 0" || echo "ended $?"
  grep -aE 'ERROR|got signal' log || true
}

add rabbitmq "rabbitmq-server"
rabbitmq.version() { local d; for d in /usr/lib/rabbitmq/lib/rabbitmq_server-*; do [ -d "$d" ] && { echo "${d##*-}"; return; }; done; return 1; }
rabbitmq.run() {
  export RABBITMQ_MNESIA_BASE=$PWD/m RABBITMQ_LOG_BASE=$PWD/l RABBITMQ_NODENAME=quire$$@localhost RABBITMQ_PID_FILE=$PWD/pid RABBITMQ_ENABLED_PLUGINS_FILE=$PWD/plugins RABBITMQ_CONFIG_FILE=$PWD/none ERL_EPMD_PORT=$((20000 + RANDOM % 10000)) RABBITMQ_DIST_PORT=$((31000 + RANDOM % 1000)) ERL_EPMD_ADDRESS=127.0.0.1 RABBITMQ_NODE_PORT=$((32100 + RANDOM % 600)) RABBITMQ_NODE_IP_ADDRESS=127.0.0.1
  mkdir -p l m
  echo '[].' >plugins
  local dir
  dir=$(echo /usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin)
  q "$dir/rabbitmq-server" >log 2>&1 & server=$!
  for _ in $(seq 1 40); do "$dir/rabbitmqctl" -q -t 5 await_startup >/dev/null 2>&1 && break; sleep 0.5; done
  q "$dir/rabbitmqctl" -q eval 'Q = rabbit_misc:r(<<"/">>, queue, <<"q">>), {new, _} = rabbit_amqqueue:declare(Q, true, false, [], none, <<"me">>), X = rabbit_misc:r(<<"/">>, exchange, <<>>), [rabbit_basic:publish(X, <<"q">>, [], binary:copy(<<"x">>, 2000)) || _ <- lists:seq(1, 20000)], W = fun F(N) -> {ok, A} = rabbit_amqqueue:lookup(Q), case rabbit_amqqueue:info(A, [messages]) of [{messages, 20000}] = R -> R; R when N == 0 -> R; _ -> timer:sleep(200), F(N - 1) end end, W(100).'
  q "$dir/rabbitmqctl" -q list_queues name messages
  q "$dir/rabbitmqctl" -q stop >/dev/null 2>&1 || true
  wait $server && echo "ended 0" || echo "ended $?"
}
