# The stressors of stress-ng, one after the other: what each one's status is.
# shellcheck shell=bash

# Stressors that are left out: they take all memory, all processes or the machine.
stress_left_out=' bigheap brk stack oom-pipe physpage resources shm-sysv bad-altstack forkheavy rlimit lockbus membarrier mlockmany numa cgroup netlink-proc binderfs efivar vforkmany watchdog pageswap enosys mergesort fanotify fiemap hdd swap ramfs sysbadaddr '

# stress CLASS ARGUMENTS...: two stressors at a time, a second each.
stress() {
  local class=$1 name
  shift
  for name in $(stress-ng --class "$class?" 2>&1 | sed 's/^class.*stressors: //'); do
    case $stress_left_out in *" $name "*) ;; *) echo "$name" ;; esac
  done >list
  export -f q
  # shellcheck disable=SC2016
  xargs -a list -P 3 -I{} bash -c 'n={}; s=0; mkdir -p "t.$n"; cd "t.$n"; q stress-ng --"$n" 1 --timeout 1 --verify --oomable --temp-path . "$@" >../"o.$n" 2>&1 || s=$?; cd ..; echo "$n $s $(grep -acE "stress-ng: (fail|error)" "o.$n")" >>results; [ $s = 0 ] || { echo "== $n $s" >&2; cat "o.$n" >&2; }' stress "$@"
  sort results
}
stress_version() { number_in stress-ng --version; }

add stress-memory stress-ng
stress-memory.version() { stress_version; }
stress-memory.run() { stress memory; }
add stress-vm stress-ng
stress-vm.version() { stress_version; }
stress-vm.run() { stress vm; }
add stress-process stress-ng
stress-process.version() { stress_version; }
stress-process.run() { stress scheduler; }
add stress-file stress-ng
stress-file.version() { stress_version; }
stress-file.run() { stress filesystem; }
add stress-aggressive stress-ng
stress-aggressive.version() { stress_version; }
stress-aggressive.run() { stress vm --aggressive; }

add stress stress-ng quick
stress.version() { stress_version; }
stress.run() {
  local n s
  for n in vm mmap mremap malloc fork vfork clone madvise userfaultfd mprotect munmap; do
    s=0
    q stress-ng --$n 2 --timeout 1 --verify --vm-bytes 128M --mmap-bytes 64M --temp-path . >out 2>&1 || s=$?
    # 7 is stress-ng's status for counts that cannot be trusted, because an instance was ended early. It is no failed
    # check: userfaultfd had it once in some thirty runs, on a busy machine.
    [ $s != 7 ] || s=0
    echo "$n $s $(grep -acE 'stress-ng: (fail|error)' out)"
    [ $s = 0 ] || cat out >&2
  done
}
