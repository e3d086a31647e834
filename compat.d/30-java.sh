# OpenJDK with each of its collectors.
# shellcheck shell=bash

java_home() { local d; for d in "$COMPAT_HOME/jdk" /usr/lib/jvm/java-17-openjdk-*; do if [ -x "$d/bin/javac" ]; then echo "$d"; return; fi; done; return 1; }
java_version() { local d; d=$(java_home) && number_in "$d/bin/java" -version; }
java_run() {
  local home
  home=$(java_home)
  cat >Work.java <<'JAVA'
import java.util.*; import java.util.concurrent.*; import java.util.stream.*; import java.nio.*;
public class Work {
  static class N { N l, r; int v; N(int d) { v = d; if (d > 1) { l = new N(d - 1); r = new N(d - 1); } } int sum() { return v + (l == null ? 0 : l.sum() + r.sum()); } }
  public static void main(String[] a) throws Exception {
    N keep = new N(20); System.out.println(keep.sum());
    long t = 0; for (int i = 0; i < 60; i++) t += new N(15).sum(); System.out.println(t);
    Map<String, byte[]> m = new HashMap<>(); for (int i = 0; i < 600000; i++) m.put("k" + (i * 7919L % 200003), new byte[200]); System.out.println(m.size());
    System.out.println(IntStream.range(0, 3000000).parallel().mapToLong(i -> i * 7919L % 1000003).sorted().limit(1000).sum());
    ByteBuffer b = ByteBuffer.allocateDirect(128 << 20); for (int i = 0; i < b.capacity(); i += 4096) b.put(i, (byte) 1); long s = 0; for (int i = 0; i < b.capacity(); i += 4096) s += b.get(i); System.out.println(s);
    ExecutorService e = Executors.newFixedThreadPool(8); List<Future<Integer>> f = new ArrayList<>(); for (int i = 0; i < 16; i++) f.add(e.submit(() -> new N(15).sum())); int r = 0; for (var x : f) r += x.get(); e.shutdown(); System.out.println(r);
    System.gc(); System.out.println(keep.sum());
    Process p = new ProcessBuilder("echo", "child").start(); System.out.println(new String(p.getInputStream().readAllBytes()).trim() + p.waitFor());
    try { int[] x = null; System.out.println(x[0]); } catch (NullPointerException x) { System.out.println("null"); }
    try { rec(0); } catch (StackOverflowError x) { System.out.println("deep"); }
    try { List<byte[]> all = new ArrayList<>(); for (;;) all.add(new byte[64 << 20]); } catch (OutOfMemoryError x) { System.out.println("full"); }
    System.exit(5);
  }
  static int rec(int n) { return rec(n + 1) + 1; }
}
JAVA
  q "$home/bin/javac" Work.java
  local status=0
  q "$home/bin/java" -Xmx600m "$@" Work || status=$?
  echo "status $status"
}
for collector in Serial Parallel G1 Z Shenandoah; do
  case $collector in Z) name=java-zgc ;; *) name=java-${collector,,} ;; esac
  fast=; case $collector in Z | G1) fast=quick ;; esac
  add "$name" openjdk-17-jdk-headless $fast
  eval "$name.version() { java_version; }; $name.run() { java_run -XX:+UnlockExperimentalVMOptions -XX:+Use${collector}GC; }"
done
add java-thp openjdk-17-jdk-headless
java-thp.version() { java_version; }
java-thp.run() { java_run -XX:+UseG1GC -XX:+UseTransparentHugePages -XX:+AlwaysPreTouch -Xms600m; }
