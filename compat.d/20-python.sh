# Python: the interpreter's own tests, and packages that compute.
# shellcheck shell=bash

wheel_version() { "$COMPAT_HOME/bin/python" -c "import $1; print($1.__version__)"; }

# The modules' results, one a line: what fails plain may fail, but the same.
python_tests() {
  local module status
  for module in "$@"; do
    status=0
    q /usr/bin/python3 -m test --timeout 100 "$module" >out 2>&1 || status=$?
    echo "$module: $status $(grep -aE '^(FAIL|ERROR):' out | sort -u | tr '\n' ';')"
  done
}
python_test_version() { test -e /usr/lib/python3.11/test/test_mmap.py && number_in /usr/bin/python3 --version; }

add cpython-quick "python3 libpython3.11-testsuite" quick
cpython-quick.version() { python_test_version; }
cpython-quick.run() { python_tests test_mmap test_array test_gc test_fork1; }
add cpython-memory "python3 libpython3.11-testsuite"
cpython-memory.version() { python_test_version; }
cpython-memory.run() { python_tests test_mmap test_array test_bytes test_gc test_ctypes test_faulthandler test_resource test_memoryview test_sys test_zlib; }
add cpython-os "python3 libpython3.11-testsuite"
cpython-os.version() { python_test_version; }
cpython-os.run() { python_tests test_os test_posix test_signal test_threading test_fork1 test_wait4 test_pty test_select test_thread; }
add cpython-subprocess "python3 libpython3.11-testsuite"
cpython-subprocess.version() { python_test_version; }
cpython-subprocess.run() { python_tests test_subprocess test_shelve test_sqlite3 test_tracemalloc; }
add cpython-socket "python3 libpython3.11-testsuite"
cpython-socket.version() { python_test_version; }
cpython-socket.run() { python_tests test_socket; }
add cpython-multi "python3 libpython3.11-testsuite"
cpython-multi.version() { python_test_version; }
cpython-multi.run() { python_tests test_multiprocessing_main_handling; q /usr/bin/python3 -m test test_multiprocessing_fork -m '*SharedMemory*' -m '*Queue*' -m '*TestHeap*' -m '*TestSharedCTypes*' -m '*TestProcess*' 2>&1 | grep -aE '^(FAIL|ERROR):|^Result|result:' | sort -u; }
cpython-multi.normal() { sed -E 's/in [0-9.]+ (sec|min).*//'; }

add python "python3"
python.version() { number_in /usr/bin/python3 --version; }
python.run() {
  q /usr/bin/python3 -c '
import hashlib, multiprocessing as m, mmap, os, threading, ctypes
from multiprocessing import shared_memory
d = {}
for i in range(600000): d[i * 7919 % 200009] = str(i)
print(len(d), hashlib.sha1("".join(sorted(d.values())[:1000]).encode()).hexdigest())
b = bytearray(200 << 20); b[::4096] = b"x" * (len(b) // 4096); print(hashlib.sha1(b).hexdigest())
def f(n): return sum(list(range(n * 100000)))
with m.get_context("fork").Pool(3) as p: print(p.map(f, range(10)))
with m.get_context("spawn").Pool(2) as p: print(p.map(len, ["a", "bb"]))
s = shared_memory.SharedMemory(create=True, size=8 << 20); s.buf[:5] = b"hello"; t = shared_memory.SharedMemory(s.name); print(bytes(t.buf[:5])); t.close(); s.close(); s.unlink()
a = mmap.mmap(-1, 128 << 20); a[:] = b"z" * len(a); a.madvise(mmap.MADV_DONTNEED, 0, 64 << 20) if hasattr(mmap, "MADV_DONTNEED") else 0; print(a[-1]); a.close()
try:
  x = b"x" * (1 << 46)
except MemoryError: print("MemoryError")
r = []; ts = [threading.Thread(target=lambda: r.append(len([0] * 5000000))) for _ in range(8)]; [t.start() for t in ts]; [t.join() for t in ts]; print(r)
p = os.fork()
if p == 0: os._exit(len(d) % 251)
print(os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]))'
}

add numpy "pip: numpy" quick
known numpy reserve "hangs in dlopen, as limits.md says of libraries of Python"
numpy.version() { wheel_version numpy; }
numpy.run() {
  q "$COMPAT_HOME/bin/python" -c '
import numpy as np, hashlib, os
r = np.random.default_rng(1); a = r.random((1200, 1200)); print(np.allclose(np.linalg.inv(a) @ a, np.eye(1200), atol=1e-6))
x = r.integers(0, 1 << 40, 5_000_000); x.sort(); print(x[0], x[-1], hashlib.sha1(x).hexdigest())
i = r.permutation(5_000_000); print(int(x[i].sum()))
z = np.zeros((4000, 4000)); z[::7] = 1; print(z.sum()); print(np.abs(np.fft.ifft(np.fft.fft(np.arange(1 << 21))) - np.arange(1 << 21)).max() < 1e-3)
m = np.memmap("m", dtype="u4", mode="w+", shape=(20_000_000,)); m[:] = np.arange(20_000_000); m.flush(); print(int(m[::1000].sum()))
try:
  np.ones(1 << 44)
except MemoryError: print("MemoryError")
if os.fork() == 0: a += 1; os._exit(int(a.size % 7))
print(os.wait()[1] >> 8); l = [np.ones(1000) * k for k in range(50000)]; print(sum(v[0] for v in l))'
}

add pandas "pip: pandas"
known pandas reserve "hangs in dlopen, as limits.md says of libraries of Python"
pandas.version() { wheel_version pandas; }
pandas.run() {
  q "$COMPAT_HOME/bin/python" -c '
import pandas as pd, numpy as np
n = 2_000_000; d = pd.DataFrame({"g": np.arange(n) * 7919 % 1009, "v": np.arange(n) * 0.5, "s": [f"x{i % 500}" for i in range(n)]})
print(d.groupby("g").v.sum().round(3).iloc[[0, 5, -1]].tolist()); print(d.groupby("s").v.mean().round(3).head().tolist())
e = d.merge(pd.DataFrame({"g": range(1009), "w": range(1009)}), on="g"); print(int(e.w.sum())); d.head(200000).to_csv("d.csv"); print(pd.read_csv("d.csv").shape); print(d.sort_values(["s", "v"]).index[:5].tolist()); print(d.pivot_table(index="s", values="v", aggfunc="max").v.sum())'
}
add pyarrow "pip: pyarrow"
known pyarrow reserve "hangs in dlopen, as limits.md says of libraries of Python"
pyarrow.version() { wheel_version pyarrow; }
pyarrow.run() {
  q "$COMPAT_HOME/bin/python" -c '
import pyarrow as pa, pyarrow.compute as pc, pyarrow.parquet as pq
for pool in [pa.default_memory_pool(), pa.system_memory_pool()] + [getattr(pa, n + "_memory_pool")() for n in pa.supported_memory_backends() if n != "system"]:
  pa.set_memory_pool(pool); n = 3_000_000
  t = pa.table({"k": pa.array([i * 7919 % 1009 for i in range(n // 3)] * 3), "v": pa.array(range(n))}); print(pool.backend_name)
  print(sorted(t.group_by("k").aggregate([("v", "sum")]).to_pylist(), key=lambda r: r["k"])[:2]); print(pc.sum(t.sort_by("k")["v"].slice(0, 1000)).as_py() > 0)
  pq.write_table(t, "t.parquet", compression="zstd"); print(pq.read_table("t.parquet").equals(t)); print(t.join(pa.table({"k": list(range(1009)), "w": list(range(1009))}), "k").num_rows)'
}
add polars "pip: polars"
known polars reserve "hangs in dlopen, as limits.md says of libraries of Python"
polars.version() { wheel_version polars; }
polars.run() {
  q "$COMPAT_HOME/bin/python" -c '
import polars as pl
n = 4_000_000; d = pl.DataFrame({"i": range(n)}).with_columns((pl.col("i") * 7919 % 1009).alias("g"), (pl.col("i") % 500).cast(pl.String).alias("s"))
print(d.group_by("g").agg(pl.col("i").sum()).sort("g").head(3).rows()); print(d.lazy().filter(pl.col("i") % 3 == 0).group_by("s").agg(pl.len()).sort("s").collect().head(3).rows())
print(d.join(pl.DataFrame({"g": range(1009), "w": range(1009)}), on="g").select(pl.col("w").sum()).item()); d.write_parquet("p"); print(pl.scan_parquet("p").select(pl.len()).collect().item()); print(d.sort("s", "i").head(3).rows())'
}
add duckdb "pip: duckdb" quick
known duckdb reserve "hangs in dlopen, as limits.md says of libraries of Python"
duckdb.version() { wheel_version duckdb; }
duckdb.run() {
  q "$COMPAT_HOME/bin/python" -c '
import duckdb
c = duckdb.connect("d.db"); c.execute("set enable_progress_bar = false"); c.execute("create table t as select i, i * 7919 % 100003 g, hash(i) h, (i % 5000)::varchar s from range(6000000) r(i)")
print(c.execute("select count(*), sum(s) from (select g, sum(i) s from t group by g)").fetchall()); print(c.execute("select count(*) from t a join (select distinct g from t where g % 3 = 0) b using (g)").fetchall())
print(c.execute("select s, count(*) c, max(h) from t group by s order by s limit 3").fetchall()); print(c.execute("select i from t order by h limit 5").fetchall()); c.execute("copy t to \"x.parquet\" (format parquet)".replace(chr(34), chr(39))); print(c.execute("select count(*) from \"x.parquet\"".replace(chr(34), chr(39))).fetchall()); c.close()'
}
add scikit-learn "pip: scikit-learn"
known scikit-learn reserve "hangs in dlopen, as limits.md says of libraries of Python"
scikit-learn.version() { wheel_version sklearn; }
scikit-learn.run() {
  q "$COMPAT_HOME/bin/python" -W ignore -c '
import numpy as np
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.model_selection import cross_val_score
from sklearn.linear_model import LogisticRegression
X, y = make_classification(30000, 40, random_state=1)
print(round(RandomForestClassifier(30, n_jobs=2, random_state=1).fit(X, y).score(X, y), 3)); print(PCA(5).fit(X).explained_variance_ratio_.round(3).tolist())
print(sorted(np.bincount(KMeans(4, n_init=2, random_state=1).fit_predict(X)).tolist())[0] > 0); print(cross_val_score(LogisticRegression(max_iter=200), X, y, cv=4, n_jobs=2).round(2).tolist())'
}
