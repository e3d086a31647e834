#!/usr/bin/env bash
# How many TLB misses superpages save in a matrix multiplication (paper 001), by
# `quire tlb`: one JSON list on standard output. The policy static is left out
# where the kernel's pool has no 80 free superpages.
#
#   examples/tlb_matmul.sh > docs/results/tlb.json
set -eu
cd "$(dirname "$0")/.."
quire=${QUIRE:-target/release/quire}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
gcc -O2 -o "$dir/matmul" examples/matmul.c

free=$(awk '/^HugePages_Free:/ { print $2 }' /proc/meminfo)
ways=(plain reserve adaptive eager)
if [ "$free" -ge 80 ]; then ways+=(static); fi

separator='['
for order in "columns 192" "blocks 2048"; do
  for way in "${ways[@]}"; do
    option="--policy=$way"
    if [ "$way" = plain ]; then option=--plain; fi
    # shellcheck disable=SC2086
    "$quire" tlb "$option" --json --output "$dir/one" -- "$dir/matmul" 2048 $order >"$dir/sum"
    printf '%s\n' "$separator"
    sed "s,$dir/,," "$dir/one"
    separator=','
    printf '%s %s: product %s\n' "$order" "$way" "$(cat "$dir/sum")" >&2
  done
done
printf ']\n'
