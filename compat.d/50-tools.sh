# Tools: version control, compression, media, debuggers, sandboxes.
# shellcheck shell=bash

add git git quick
git.version() { number_in git --version; }
git.run() {
  export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b GIT_AUTHOR_DATE='1700000000 +0000' GIT_COMMITTER_DATE='1700000000 +0000' GIT_CONFIG_NOSYSTEM=1
  q git init -q -b main .
  head -n 60000 "$COMPAT_DATA/words" | split -l 2000 -a 3 - part.
  head -c 5000000 "$COMPAT_DATA/numbers" >big
  q git add .
  q git commit -q -m one
  for i in 1 2 3 4; do for f in part.a[a-m]*; do sed -i "${i}00s/.*/changed $i/" "$f"; done; q git commit -q -a -m "change $i"; done
  q git -c pack.threads=2 repack -adfq --depth=20 --window=10
  q git gc -q --prune=now
  q git fsck --full --strict
  q git clone -q --no-local . clone
  q git -C clone log --stat --format=%H | sha1sum
  q git grep -c 'changed 3' | wc -l
  q git blame part.aaa | sha1sum
  q git archive main | sha1sum
}

add xz xz-utils quick
xz.version() { number_in xz --version; }
xz.run() { head -c 4000000 "$COMPAT_DATA/words" >in; q xz -T2 -6 --block-size=2MiB -k in; q xz -dc -T2 in.xz | cmp - in && sha1sum <in.xz; }

add zstd zstd
zstd.version() { number_in zstd --version; }
zstd.run() { head -c 30000000 "$COMPAT_DATA/words" >in; q zstd -q -T2 -9 --long=27 in -o a; q zstd -q -dc --long=27 a | cmp - in && sha1sum <a; q zstd -q -1 -T1 in -o b; sha1sum <b; }

add ffmpeg ffmpeg
ffmpeg.version() { number_in ffmpeg -version; }
ffmpeg.run() {
  q ffmpeg -v error -f lavfi -i testsrc2=size=1280x720:rate=25:duration=3 -f lavfi -i sine=frequency=440:duration=4 -c:v libx264 -preset veryfast -threads 4 -c:a aac -y a.mkv
  q ffmpeg -v error -i a.mkv -map 0:v -f md5 -
  q ffmpeg -v error -i a.mkv -vf scale=640:360,unsharp -c:v libvpx-vp9 -deadline realtime -cpu-used 8 -t 1 -y b.webm
  q ffmpeg -v error -i b.webm -f md5 -
}

add imagemagick imagemagick
imagemagick.version() { first_line convert-im6.q16 -version | grep -oE '[0-9]+\.[0-9.-]+'; }
imagemagick.run() {
  q convert-im6.q16 -seed 7 -size 1200x1200 plasma:red-blue -resize 120% -blur 0x2 -rotate 5 a.png
  q convert-im6.q16 a.png -format '%#\n' info:
  q convert-im6.q16 a.png -quality 90 -unsharp 0x1 a.jpg
  q identify-im6.q16 -format '%wx%h %#\n' a.jpg
}

debug_source() {
  cat >work.c <<'C'
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
static void *thread(void *p) { char *b = malloc(5 << 20); memset(b, 1, 5 << 20); free(b); return p; }
int work(int n) { char *p = malloc(n); memset(p, 2, n); int s = 0; for (int i = 0; i < n; i += 4096) s += p[i]; free(p); return s; }
int main(void) {
  pthread_t t[3];
  printf("%d\n", work(80 << 20));
  for (int i = 0; i < 3; i++) pthread_create(&t[i], 0, thread, 0);
  for (int i = 0; i < 3; i++) pthread_join(t[i], 0);
  fflush(stdout);
  for (int i = 0; i < 2; i++) { pid_t p = fork(); if (!p) _exit(work(66 << 20) & 15); int st; waitpid(p, &st, 0); printf("%d\n", WEXITSTATUS(st)); }
  char *z = realloc(malloc(70 << 20), 140 << 20);
  strcpy(z, "end");
  puts(z);
  return 3;
}
C
  gcc -g -O1 -pthread work.c -o work
}

add valgrind "valgrind gcc libc6-dbg" quick
valgrind.version() { number_in valgrind --version; }
valgrind.run() { valgrind_tools memcheck none; }
add valgrind-tools "valgrind gcc libc6-dbg"
valgrind-tools.version() { number_in valgrind --version; }
valgrind-tools.run() { valgrind_tools helgrind callgrind massif drd; }
valgrind_tools() {
  local tool
  debug_source
  for tool in "$@"; do
    q valgrind -q --tool=$tool --error-exitcode=9 ./work 2>err && echo "status 0" || echo "$tool status $?"
    grep -aE '^==[0-9]+==' err | sed -E 's/==[0-9]+==//' | grep -vE 'warning: set address range' | head -n 5 || true
  done
}

add gdb "gdb gcc" quick
gdb.version() { first_line gdb --version | grep -oE '[0-9.]+$'; }
gdb.run() {
  debug_source
  # The debugger under Quire, and so the program, too.
  q gdb -nx -batch -ex 'set debuginfod enabled off' -ex 'break work' -ex run -ex bt -ex finish -ex 'call (int) work(75000000)' -ex 'delete' -ex 'watch *(int *) $sp' -ex 'delete' -ex continue ./work 2>/dev/null
  # The debugger attached to a program that Quire runs.
  cat >loop.c <<'C'
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
volatile int go = 1, n;
int main(void) { char *p = malloc(200 << 20); while (go) { memset(p, n++, 200 << 20); } return 4; }
C
  gcc -g loop.c -o loop
  q ./loop & server=$!
  sleep 1
  local pid
  pid=$(pgrep -n -x loop -u "$(id -u)")
  gdb -nx -batch -p "$pid" -ex 'set debuginfod enabled off' -ex 'print n > 0' -ex 'gcore core.file' -ex 'set var go = 0' -ex detach 2>/dev/null | grep -aE '^\$|Saved'
  wait $server && echo "ended 0" || echo "ended $?"
}
gdb.normal() { grep -avE '^\[|New Thread|LWP|libthread_db|warning' | sed -E 's/0x[0-9a-f]+/X/g; s/^Thread 1 "[a-z]+" hit //; s/process [0-9]+/process N/g'; }

add strace "strace gcc"
strace.version() { number_in strace -V; }
strace.run() { debug_source; q strace -f -qq -e trace=write,exit_group -e signal=none -o trace ./work || echo "status $?"; grep -aE 'write\(1|exit_group' trace | sed -E 's/^[0-9]+ +//'; q strace -c -f -o counts ./work >/dev/null || echo "status $?"; }

add perf "linux-perf gcc"
perf.version() { number_in perf --version; }
perf.run() { debug_source; q perf stat -x, -e task-clock -o stat ./work || echo "status $?"; q perf record -q -e cpu-clock -o data ./work || echo "status $?"; q perf report -i data --stdio 2>/dev/null | grep -c ' work ' | awk '{ print ($1 > 0) }'; }

add rr "rr gcc"
rr.version() { number_in rr --version; }
rr.run() { debug_source; export _RR_TRACE_DIR=$PWD/rr; local s=0; q rr record -n ./work || s=$?; echo "status $s"; [ $s = 3 ] || return 1; q rr replay -a || echo "status $?"; }

add bubblewrap "bubblewrap" quick
bubblewrap.version() { number_in bwrap --version; }
bubblewrap.run() {
  q bwrap --ro-bind / / --dev /dev --proc /proc --unshare-all --die-with-parent /usr/bin/python3 -c 'b = bytearray(150 << 20); b[::4096] = b"x" * (len(b) // 4096); print(sum(b[::40960])); import os; print(os.getpid() < 10)'
  # With Quire inside the sandbox.
  bwrap --ro-bind / / --dev /dev --proc /proc --unshare-all --die-with-parent "$BASH" -c "$(declare -f q); q /usr/bin/python3 -c 'b = bytearray(150 << 20); b[::4096] = b\"x\" * (len(b) // 4096); print(sum(b[::40960]))'"
  q bwrap --unshare-user --uid 0 --gid 0 --ro-bind / / --proc /proc --dev /dev bash -c 'id -u; exit 6' || echo "status $?"
}

# A small root file system: Quire is bound into it, and runs a program there.
container_root() {
  mkdir -p root/bin root/lib root/lib64 root/proc root/dev root/tmp root/usr/bin root/usr/lib
  cp /bin/busybox root/bin/
  ln -sf busybox root/bin/sh
  for f in $(ldd /usr/bin/perl "$(command -v stress-ng || echo /bin/true)" "$COMPAT_QUIRE" | grep -oE '/[^ ]+' | sort -u) /usr/bin/perl; do [ -f "$f" ] && mkdir -p "root/$(dirname "$f")" && cp -L "$f" "root/$f"; done
}
add podman "podman runc busybox-static perl fuse-overlayfs uidmap slirp4netns"
root_only podman "an ordinary user needs ranges in /etc/subuid"
podman.version() { number_in podman --version; }
podman.run() {
  container_root
  local run=(podman --runtime runc --root "$PWD/store" --runroot "$PWD/runroot" --cgroup-manager=cgroupfs --storage-driver=vfs run --rm --network=none --cgroups=enabled --ulimit nofile=1024:1024 --ulimit nproc=4096:4096 --log-driver=none -v "${COMPAT_QUIRE%/bin/quire}:/quire:ro" --rootfs "$PWD/root")
  q "${run[@]}" /bin/sh -c 'echo static; exit 5' 2>err || echo "status $?"
  cat err >&2
  if [ "$COMPAT_POLICY" = plain ]; then
    "${run[@]}" /usr/bin/perl -e '$s = "x" x (150 << 20); print length($s), "\n"; print fork() ? (wait, $? >> 8)[1] : exit(7), "\n"'
  else
    "${run[@]}" /quire/bin/quire run --quiet --policy "$COMPAT_POLICY" -- /usr/bin/perl -e '$s = "x" x (150 << 20); print length($s), "\n"; print fork() ? (wait, $? >> 8)[1] : exit(7), "\n"'
  fi
}

add qemu "qemu-system-x86 qemu-utils"
qemu.version() { command -v qemu-img >/dev/null && number_in qemu-system-x86_64 --version; }
qemu.run() {
  # A boot sector: goes through 12 MiB of loops, writes a word to the serial port, and ends the machine.
  /usr/bin/python3 - <<'PY'
code = bytes([0xfa, 0x31, 0xc0, 0x8e, 0xd8, 0xbb, 0x80, 0x00])      # cli; ax = ds = 0; bx = 128
code += bytes([0xb9, 0xff, 0xff, 0xf7, 0xe1, 0xe2, 0xfc, 0x4b, 0x75, 0xf6])  # cx = ffff; mul cx; loop; dec bx; jnz
code += bytes([0xba, 0xf8, 0x03])
for c in b"quire\n": code += bytes([0xb0, c, 0xee])
code += bytes([0xb0, 0x10, 0xe6, 0xf4, 0xf4])
open("boot", "wb").write(code + bytes(510 - len(code)) + b"\x55\xaa" + bytes(1 << 20))
PY
  q qemu-system-x86_64 -accel tcg,thread=multi -m 300 -mem-prealloc -display none -nodefaults -no-reboot -serial file:serial -drive file=boot,format=raw,if=ide -device isa-debug-exit,iobase=0xf4,iosize=4 2>err || echo "status $?"
  cat err >&2
  cat serial
  head -c 41000000 "$COMPAT_DATA/words" >disk.raw
  q qemu-img convert -f raw -O qcow2 -c -m 4 disk.raw disk.qcow2
  q qemu-img check disk.qcow2 | head -n 1
  q qemu-img convert -O raw disk.qcow2 back.raw
  cmp -n 40000000 disk.raw back.raw && echo same
}
