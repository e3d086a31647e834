#!/usr/bin/env bash
# PostgreSQL with its shared memory in an object, beside the same with the kernel's: transactions a
# second with pgbench, of two clients (TPC-B, and queries alone) and of one that connects for each
# query. To be run as an ordinary user, with `quire` on the PATH:
#
#     postgres.sh DIRECTORY [ROUNDS]     DIRECTORY: an empty one, for the database and a socket
set -eu
directory=$1
rounds=${2:-3}
programs=$(ls -d /usr/lib/postgresql/*/bin | tail -1)
data=$directory/data
export PGHOST=$directory PGDATA=$data PGDATABASE=postgres

"$programs/initdb" -N -A trust >/dev/null
options=(-D "$data" -F -c listen_addresses= -c "unix_socket_directories=$directory"
  -c shared_memory_type=sysv -c dynamic_shared_memory_type=mmap -c huge_pages=off
  -c shared_buffers=32MB -c synchronous_commit=off)
quire serve --listen "unix:$directory/quire" >/dev/null &
server=$!
trap 'kill $server' EXIT
key=$(printf '0x%x' "$(stat -c %i "$data")")

start() {
  case $1 in
  kernel) "$programs/postgres" "${options[@]}" 2>/dev/null & ;;
  object)
    quire run --quiet --policy base --dsm "pg=$key@unix:$directory/quire" -- \
      "$programs/postgres" "${options[@]}" 2>/dev/null &
    ;;
  esac
  until "$programs/pg_isready" -q; do sleep 0.2; done
}

bench() { "$programs/pgbench" "$@" 2>/dev/null | sed -n 's/^tps = \([0-9]*\).*/\1/p'; }

start kernel
"$programs/pgbench" -i -s 2 -q 2>/dev/null
"$programs/pg_ctl" stop -m fast >/dev/null
for ((round = 0; round < rounds; round++)); do
  for memory in kernel object; do
    start $memory
    bench -S -c 2 -T 2 >/dev/null
    echo "$memory: TPC-B $(bench -c 2 -T 4), queries $(bench -S -c 2 -T 4)," \
      "connections $(bench -C -S -c 1 -T 3)"
    "$programs/pg_ctl" stop -m fast >/dev/null
  done
done
