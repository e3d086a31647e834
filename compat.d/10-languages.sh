# Interpreters and compilers.
# shellcheck shell=bash

add php "php-cli php-mbstring php-xml php-gd php-intl php-curl php-sqlite3 php-gmp php-bcmath php-zip" quick
php.version() { php -v | grep -oE '^PHP [0-9.]+'; }
php.run() {
  cat >work.php <<'PHP'
<?php
$names = get_loaded_extensions(); sort($names);
echo implode(" ", $names), "\n";
ini_set("memory_limit", "1G");
$a = [];
for ($i = 0; $i < 1500000; $i++) $a[] = ($i * 2654435761) & 0xffffffff;
sort($a); echo $a[0], " ", $a[750000], "\n";
$h = []; for ($i = 0; $i < 500000; $i++) $h["k" . ($i % 70000)] = str_repeat(chr(65 + $i % 26), 20);
echo count($h), " ", md5(serialize($h)), "\n";
unset($a);
if (function_exists("mb_strtoupper")) echo mb_strtoupper("straße"), "\n";
if (class_exists("NumberFormatter")) echo (new NumberFormatter("de_DE", NumberFormatter::DECIMAL))->format(1234567.5), "\n";
if (function_exists("gmp_pow")) echo md5(gmp_strval(gmp_pow(7, 100000))), "\n";
if (function_exists("bcpow")) echo md5(bcpow("3", "4000")), "\n";
if (class_exists("SQLite3")) { $d = new SQLite3(":memory:"); $d->exec("create table t(x)"); $d->exec("begin"); for ($i = 0; $i < 50000; $i++) $d->exec("insert into t values($i)"); $d->exec("commit"); echo $d->querySingle("select sum(x) from t"), "\n"; }
if (function_exists("imagecreatetruecolor")) { $g = imagecreatetruecolor(4000, 4000); for ($i = 0; $i < 2000; $i++) imageline($g, 0, $i, $i * 2 % 4000, 3999, $i * 77); ob_start(); imagepng($g); echo md5(ob_get_clean()), "\n"; }
if (class_exists("DOMDocument")) { $x = new DOMDocument; $x->loadXML("<r>" . str_repeat("<a b='1'>x</a>", 100000) . "</r>"); echo $x->getElementsByTagName("a")->length, "\n"; }
for ($i = 0, $s = 0; $i < 20000; $i++) $s += preg_match('/(a+)b(c|d)*e?/', "aaab" . str_repeat("cd", $i % 50), $m);
echo $s, "\n";
if (function_exists("pcntl_fork")) { for ($i = 0; $i < 4; $i++) { $p = pcntl_fork(); if ($p == 0) { $z = str_repeat("z", 50000000); exit(strlen($z) == 50000000 ? 0 : 1); } pcntl_waitpid($p, $st); echo pcntl_wexitstatus($st); } echo "\n"; }
echo trim(shell_exec("echo shell")), "\n";
PHP
  q php work.php
  q php -d opcache.enable_cli=1 -d opcache.jit=tracing -d opcache.jit_buffer_size=64M -d opcache.memory_consumption=128 work.php
}

add perl perl quick
perl.version() { number_in perl -v; }
perl.run() {
  q perl -e '
    use POSIX; my %h; $h{$_ % 300000} .= chr(65 + $_ % 26) for 1 .. 2000000;
    my $n = 0; $n += length for values %h; print "$n\n";
    my @a = sort { $a <=> $b } map { ($_ * 7919) % 1000003 } 1 .. 1000000; print "$a[0] $a[500000] $a[-1]\n";
    my $s = "x" x (200 << 20); print length($s), "\n"; substr($s, 100, 5) = "hello"; print index($s, "hello"), "\n";
    for (1 .. 4) { my $p = fork; if (!$p) { $h{$_} = "y" x 100 for 1 .. 100000; exit 7 } waitpid $p, 0; print $? >> 8, "\n" }
    print join(",", sort map { `echo $_` =~ s/\n//r } 1 .. 20), "\n";'
}

add ruby ruby quick
ruby.version() { number_in ruby --version; }
ruby.run() {
  cat >work.rb <<'RB'
require 'digest'; require 'zlib'; require 'fiber'
a = (0...600_000).map { |i| "s#{i * 7919 % 300_007}" }
h = Hash.new(0); a.each { |s| h[s] += 1 }
puts h.size, Digest::SHA1.hexdigest(a.sort.last(1000).join)
GC.start; GC.compact if GC.respond_to?(:compact)
b = "q" * (96 << 20); puts Zlib.crc32(b)
puts Zlib::Inflate.inflate(Zlib::Deflate.deflate(b)).size
puts (0...4).map { |n| Thread.new { (0...300_000).map { |x| [x, n] }.size } }.map(&:value).inspect
f = Fiber.new { 5.times { |i| Fiber.yield i } }; puts 5.times.map { f.resume }.inspect
4.times { |i| pid = fork { c = (0...200_000).map(&:to_s); exit!(c.size == 200_000 ? i : 9) }; Process.wait pid; puts $?.exitstatus }
puts `echo sub`
RB
  q ruby work.rb
  q ruby --jit -e 'x = 0; 3_000_000.times { |i| x = (x + i) % 1009 }; puts x' 2>/dev/null || true
}

add r "r-base-core"
r.version() { number_in R --version; }
r.run() {
  q Rscript --vanilla -e 'set.seed(1); n <- 700; m <- matrix(runif(n*n), n); print(round(sum(solve(m) %*% m), 6));
    x <- runif(8e6); print(length(unique(floor(sort(x) * 1e5)))); d <- data.frame(g = rep(1:1000, 2000), v = 1:2e6);
    print(sum(tapply(d$v, d$g, mean))); l <- lapply(1:300000, function(i) c(i, i)); print(length(l)); gc()[0];
    print(unlist(parallel::mclapply(1:4, function(i) sum(as.numeric(seq_len(1e6))) + i, mc.cores = 2)))'
}

add octave "octave"
octave.version() { number_in octave-cli --version; }
octave.run() {
  q octave-cli --no-init-file --eval 'rand("seed", 1); a = reshape(mod((1:1000*1000) * 7919, 10007), 1000, 1000) + eye(1000) * 1e5; printf("%.4f\n", norm(a \ (a * ones(1000, 1)) - 1) < 1e-6);
    b = zeros(4000, 4000); b(:) = 1; printf("%d\n", sum(b(:))); c = sort(mod((1:4e6) * 7919, 1000003)); printf("%d %d\n", c(1), c(end)); s = repmat("ab", 1, 3e7); printf("%d\n", length(strrep(s, "ab", "c")));'
}

add luajit luajit
luajit.version() { number_in luajit -v; }
luajit.run() {
  q luajit -e 'local ffi = require("ffi"); ffi.cdef[[void *malloc(size_t); void free(void *);]]
    local p = ffi.cast("uint32_t *", ffi.C.malloc(200 * 1048576)); local n = 50 * 1048576
    for i = 0, n - 1 do p[i] = i end; local s = 0; for i = 0, n - 1, 511 do s = s + p[i] end; print(s); ffi.C.free(p)
    local t = {}; for i = 1, 3000000 do t[i] = {i} end; local z = 0; for i = 1, #t do z = z + t[i][1] end; print(z)
    local b = {}; for i = 1, 300000 do b[#b + 1] = "x" .. i end; print(#table.concat(b)); collectgarbage(); print(#t)'
}

add ocaml "ocaml-nox"
ocaml.version() { number_in ocamlopt -version; }
ocaml.run() {
  cat >work.ml <<'ML'
type t = Leaf | Node of t * int * t
let rec make d n = if d = 0 then Leaf else Node (make (d - 1) (2 * n), n, make (d - 1) (2 * n + 1))
let rec sum = function Leaf -> 0 | Node (l, n, r) -> sum l + n + sum r
let () = let t = make 21 1 in Printf.printf "%d\n" (sum t);
  let h = Hashtbl.create 10 in for i = 0 to 2000000 do Hashtbl.replace h (i * 7919 mod 1000003) i done; Printf.printf "%d\n" (Hashtbl.length h);
  Gc.compact (); let b = Bytes.make (100 lsl 20) 'x' in Printf.printf "%d\n" (Bytes.length b);
  match Unix.fork () with 0 -> exit (if sum t > 0 then 3 else 4) | p -> (match Unix.waitpid [] p with _, Unix.WEXITED n -> Printf.printf "%d\n" n | _ -> print_endline "signal")
ML
  q ocamlfind ocamlopt -package unix -linkpkg work.ml -o work 2>/dev/null || q ocamlopt -I +unix unix.cmxa work.ml -o work
  q ./work
}

add pandoc pandoc
pandoc.version() { number_in pandoc --version; }
pandoc.run() {
  head -n 1500 "$COMPAT_DATA/words" | awk '{ if (NR % 10 == 1) print "\n# " $1 " *" $2 "*\n"; print "- " $0 " [" $1 "](http://x/" $2 ")" }' >work.md
  q pandoc work.md -t html -o work.html
  q pandoc work.html -f html -t latex -o work.tex
  sha1sum work.html work.tex
}

add ghc ghc
ghc.version() { number_in ghc --version; }
ghc.run() {
  cat >Work.hs <<'HS'
import qualified Data.Map.Strict as M
import Control.Concurrent
import Data.List (foldl')
main :: IO ()
main = do
  let m = foldl' (\a i -> M.insertWith (+) ((i * 7919) `mod` 400009) i a) M.empty [1 .. 1000000 :: Int]
  print (M.size m, M.foldl' (+) 0 m)
  vs <- mapM (\n -> do { v <- newEmptyMVar; _ <- forkIO (putMVar v $! sum [1 .. n * 100000 :: Int]); return v }) [1 .. 20]
  mapM takeMVar vs >>= print
HS
  q ghc -O1 -threaded -rtsopts Work.hs -o work >/dev/null
  q ./work +RTS -N2 -A16m
  q ./work +RTS -c
}

add sbcl sbcl
sbcl.version() { number_in sbcl --version; }
sbcl.run() {
  q sbcl --noinform --non-interactive --no-userinit --eval '(progn (defun f (n) (if (< n 2) n (+ (f (- n 1)) (f (- n 2))))) (compile (quote f)) (print (f 30))
    (let ((h (make-hash-table))) (dotimes (i 2000000) (setf (gethash (mod (* i 7919) 1000003) h) (list i i))) (print (hash-table-count h)))
    (let ((l nil)) (dotimes (i 3000000) (push (cons i i) l)) (gc :full t) (print (length l)))
    (let ((a (make-array 20000000 :element-type (quote (unsigned-byte 32)) :initial-element 3))) (print (reduce (function +) a)))
    (print (mapcar (function sb-thread:join-thread) (loop for i below 4 collect (let ((i i)) (sb-thread:make-thread (lambda () (length (make-list (* 100000 i)))))))) )
    (terpri))'
}

add guile guile-3.0
guile.version() { number_in guile --version; }
guile.run() {
  export GUILE_AUTO_COMPILE=0
  q guile -c '(let ((h (make-hash-table))) (do ((i 0 (+ i 1))) ((= i 1000000)) (hashv-set! h (modulo (* i 7919) 300007) (list i i)))
    (display (hash-count (const #t) h)) (newline) (let ((v (make-vector 10000000 (quote x)))) (display (vector-length v)) (newline))
    (gc) (display (apply + (map (lambda (x) (* x x)) (iota 1000000)))) (newline)
    (use-modules (ice-9 threads)) (display (par-map (lambda (x) (length (iota (* x 100000)))) (quote (1 2 3 4)))) (newline)
    (let ((p (primitive-fork))) (if (= p 0) (primitive-exit 5) (begin (display (status:exit-val (cdr (waitpid p)))) (newline)))))'
}

add erlang erlang-base
erlang.version() { erl -noshell -eval 'io:format("OTP ~s~n", [erlang:system_info(otp_release)]), halt().'; }
erlang.run() {
  q erl -noshell -eval 'T = ets:new(t, [public]), [ets:insert(T, {I * 7919 rem 1000003, <<I:64>>}) || I <- lists:seq(1, 1000000)], io:format("~p~n", [ets:info(T, size)]),
    Me = self(), [spawn(fun() -> L = lists:seq(1, 10000 + N), Me ! lists:sum(L) end) || N <- lists:seq(1, 2000)],
    io:format("~p~n", [lists:sum([receive S -> S end || _ <- lists:seq(1, 2000)])]), B = binary:copy(<<"abcdefgh">>, 16 * 1024 * 1024), io:format("~p ~p~n", [byte_size(B), erlang:crc32(B)]),
    io:format("~s", [os:cmd("echo port")]), halt(3).' || echo "status $?"
}

add mono "mono-mcs mono-runtime"
mono.version() { number_in mono --version; }
mono.run() {
  cat >work.cs <<'CS'
using System; using System.Collections.Generic; using System.Threading; using System.Linq;
class Work { class N { public N l, r; public int v; } static N Make(int d) { return d == 0 ? null : new N { l = Make(d - 1), r = Make(d - 1), v = d }; } static int Sum(N n) { return n == null ? 0 : n.v + Sum(n.l) + Sum(n.r); }
  static void Main() { var t = Make(20); Console.WriteLine(Sum(t)); var d = new Dictionary<int, string>(); for (int i = 0; i < 1000000; i++) d[(int)((long)i * 7919 % 300007)] = i.ToString(); Console.WriteLine(d.Count);
    var a = new byte[200000000]; for (int i = 0; i < a.Length; i += 1000) a[i] = 1; Console.WriteLine(a.Sum(x => (long)x)); int done = 0;
    var ts = Enumerable.Range(0, 4).Select(i => new Thread(() => { var s = Make(16); Interlocked.Add(ref done, Sum(s)); })).ToList(); ts.ForEach(x => x.Start()); ts.ForEach(x => x.Join()); Console.WriteLine(done); GC.Collect(); Console.WriteLine(Sum(t)); } }
CS
  q mcs work.cs
  q mono work.exe
}

go_source() {
  cat >work.go <<'GO'
package main

GO
  if [ "$1" = cgo ]; then
    cat >>work.go <<'GO'
/*
#include <stdlib.h>
#include <string.h>
static long fill(size_t n) { char *p = malloc(n); memset(p, 3, n); long s = 0; for (size_t i = 0; i < n; i += 4096) s += p[i]; free(p); return s; }
*/
import "C"
GO
  fi
  cat >>work.go <<'GO'
import ("fmt"; "os/exec"; "runtime"; "sort"; "sync"; "crypto/sha256")
type n struct{ l, r *n; v int }
func mk(d int) *n { if d == 0 { return nil }; return &n{mk(d - 1), mk(d - 1), d} }
func (t *n) sum() int { if t == nil { return 0 }; return t.v + t.l.sum() + t.r.sum() }
func main() {
	t := mk(21)
	fmt.Println(t.sum())
	m := map[int][]byte{}
	for i := 0; i < 1000000; i++ { m[i*7919%300007] = make([]byte, 100) }
	fmt.Println(len(m))
	var w sync.WaitGroup
	r := make([]int, 8)
	for g := 0; g < 8; g++ { w.Add(1); go func(g int) { defer w.Done(); a := make([]int, 1000000); for i := range a { a[i] = i * 7919 % 1000003 }; sort.Ints(a); r[g] = a[1000] }(g) }
	w.Wait()
	fmt.Println(r)
	runtime.GC()
	b := make([]byte, 128<<20)
	for i := range b { b[i] = byte(i) }
	fmt.Printf("%x\n", sha256.Sum256(b))
	for i := 0; i < 20; i++ { o, e := exec.Command("echo", "child").Output(); if e != nil { fmt.Println(e) } else if i == 19 { fmt.Print(string(o)) } }
GO
  if [ "$1" = cgo ]; then printf '\tfmt.Println(C.fill(200 << 20))\n' >>work.go; fi
  echo '}' >>work.go
}
add go "golang-go"
go.version() { number_in go version; }
go.run() {
  export GOFLAGS=-mod=mod GO111MODULE=off GOCACHE=$HOME/cache GOPATH=$HOME/go CGO_ENABLED=0
  go_source pure
  q go build -o work work.go
  q ./work
}
add go-cgo "golang-go gcc"
go-cgo.version() { number_in go version; }
go-cgo.run() {
  export GOFLAGS=-mod=mod GO111MODULE=off GOCACHE=$HOME/cache GOPATH=$HOME/go CGO_ENABLED=1
  go_source cgo
  q go build -o work work.go
  q ./work
}

c_source() {
  awk 'BEGIN { print "#include <stdio.h>\n#include <string.h>\nstruct s { int a[64]; double d; };"; for (i = 0; i < 400; i++) { printf "int f%d(struct s *s, int n) { int r = %d; for (int i = 0; i < n; i++) { s->a[i & 63] += r ^ i; if (s->a[(i * 7) & 63] %% %d == 0) r += s->a[i & 31] * %d; switch (r & 7) { case 0: r ^= %d; break; case 3: s->d *= 1.5; break; case 5: r = r * 31 + i; } } return r; }\n", i, i, i % 97 + 2, i, i * 3 } print "int main(void) { struct s s; memset(&s, 1, sizeof s); int r = 0;"; for (i = 0; i < 400; i++) printf "r ^= f%d(&s, %d);", i, i + 10; print "printf(\"%d\\n\", r); return 0; }" }'
}
add gcc gcc
gcc.version() { number_in gcc -dumpfullversion; }
gcc.run() { c_source >work.c; q gcc -O2 -c work.c -o work.o; q gcc work.o -o work; q ./work; sha1sum <work.o; }
add clang clang
clang.version() { number_in clang --version; }
clang.run() { c_source >work.c; q clang -O2 -c work.c -o work.o; q clang work.o -o work; q ./work; sha1sum <work.o; }

add rustc rustc
rustc.version() { number_in /usr/bin/rustc --version; }
rustc.run() {
  awk 'BEGIN { for (i = 0; i < 40; i++) printf "#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)] pub struct S%d { a: u32, b: String, c: Vec<u64> }\npub fn f%d(n: u64) -> u64 { let mut v: Vec<S%d> = (0..n).map(|i| S%d { a: i as u32, b: format!(\"{}\", i %% %d), c: vec![i; 3] }).collect(); v.sort(); v.iter().map(|s| s.c[0] ^ s.a as u64 ^ s.b.len() as u64).sum() }\n", i, i, i, i, i + 3; print "fn main() { let mut r = 0u64;"; for (i = 0; i < 40; i++) printf "r ^= f%d(%d);\n", i, i; print "println!(\"{}\", r); }" }' >work.rs
  q /usr/bin/rustc -O -C codegen-units=4 work.rs -o work 2>/dev/null
  q ./work
}

add node nodejs quick
node.version() { number_in node --version; }
node.run() {
  cat >work.js <<'JS'
const { Worker, isMainThread, parentPort, workerData } = require('worker_threads');
const zlib = require('zlib'), crypto = require('crypto'), cp = require('child_process');
function tree(d) { return d === 0 ? null : { l: tree(d - 1), r: tree(d - 1), v: d }; }
function sum(t) { return t ? t.v + sum(t.l) + sum(t.r) : 0; }
if (!isMainThread) { parentPort.postMessage(sum(tree(workerData))); }
else if (process.argv[2] === 'child') { process.send({ n: sum(tree(16)) }, () => process.exit(4)); }
else (async () => {
  const t = tree(20); console.log(sum(t));
  const m = new Map(); for (let i = 0; i < 1000000; i++) m.set('k' + (i * 7919 % 300007), [i]); console.log(m.size);
  const b = Buffer.alloc(160 << 20, 'abcdefg'); console.log(crypto.createHash('sha1').update(b).digest('hex'));
  console.log(zlib.gunzipSync(zlib.gzipSync(b, { level: 1 })).length);
  const w = new WebAssembly.Memory({ initial: 10, maximum: 3000 }); w.grow(2000); new Uint8Array(w.buffer).fill(7); console.log(w.buffer.byteLength);
  console.log(await Promise.all([17, 18, 16, 15].map(n => new Promise((ok, no) => new Worker(__filename, { workerData: n }).on('message', ok).on('error', no)))));
  const c = cp.fork(__filename, ['child']); c.on('message', x => console.log(x)); console.log(await new Promise(ok => c.on('exit', ok)));
  console.log(cp.execSync('echo shell').toString().trim());
  const s = new SharedArrayBuffer(64 << 20); new Int32Array(s).fill(5); console.log(new Int32Array(s).reduce((a, x) => a + x, 0));
})();
JS
  q node --max-old-space-size=1024 work.js
}
