# Reports measurements to `quire bench`, from any POSIX shell.
#
#     . ./quire_bench.sh
#     quire_bench_report throughput 125 MB/s
#
# Without `quire bench` nothing is reported.

# quire_bench_report METRIC VALUE [UNIT]: units are such as s, ms, us, ns, bytes, KiB
# or 1/s.
quire_bench_report() {
    # A program that closes descriptors may have put a file of its own there.
    [ -n "${QUIRE_BENCH_FD:-}" ] && [ -p "/proc/$$/fd/$QUIRE_BENCH_FD" ] || return 0
    # Shells have names for descriptors up to 9 only, so it is opened by its path.
    printf 'quire: %s %s %s\n' "$1" "$2" "${3:-}" >"/proc/$$/fd/$QUIRE_BENCH_FD"
}

# quire_bench_measurements OTHERWISE: prints how many measurements are wanted.
quire_bench_measurements() {
    printf '%s\n' "${QUIRE_BENCH_MEASUREMENTS:-$1}"
}
