# Browsers without a display.
# shellcheck shell=bash

page() {
  cat >page.html <<'HTML'
<!doctype html><title>t</title><body><canvas id=c width=900 height=500></canvas><p id=o>none</p><script>
let t = d => d ? { l: t(d - 1), r: t(d - 1) } : null, n = x => x ? 1 + n(x.l) + n(x.r) : 0, k = t(18);
let m = new Map(); for (let i = 0; i < 300000; i++) m.set('k' + i * 7919 % 100003, [i]);
let u = new Uint8Array(100 << 20); u.fill(3); let s = 0; for (let i = 0; i < u.length; i += 4096) s += u[i];
let g = document.getElementById('c').getContext('2d'); for (let i = 0; i < 300; i++) { g.fillStyle = `rgb(${i % 255},${i * 7 % 255},${i * 13 % 255})`; g.fillRect(i * 3, i % 400, 50, 50); }
let w = new Worker(URL.createObjectURL(new Blob(['onmessage = e => { let a = []; for (let i = 0; i < 1000000; i++) a.push([i]); postMessage(a.length) }'])));
w.onmessage = e => { document.title = 'worker ' + e.data };
document.getElementById('o').textContent = [n(k), m.size, s].join(' '); w.postMessage(1);
</script>
HTML
}

add chromium chromium quick
chromium.version() { number_in chromium --version; }
chromium.run() {
  page
  local as=()
  if [ "$COMPAT_USER" = root ]; then as=(--no-sandbox); fi
  q chromium --headless=new "${as[@]}" --disable-gpu --no-first-run --user-data-dir="$PWD/profile" --virtual-time-budget=20000 --timeout=20000 --dump-dom "file://$PWD/page.html" 2>err >dom || echo "status $?"
  cat err >&2
  grep -aoE '<p id="o">[^<]*' dom || echo "no page"
  q chromium --headless=new "${as[@]}" --disable-gpu --no-first-run --user-data-dir="$PWD/profile2" --window-size=1000,700 --virtual-time-budget=20000 --screenshot="$PWD/shot.png" "file://$PWD/page.html" 2>err || echo "status $?"
  cat err >&2
  head -c 4 shot.png | od -c | head -n 1
}

add firefox firefox-esr
firefox.version() { number_in firefox-esr --version; }
firefox.run() {
  page
  export MOZ_CRASHREPORTER_DISABLE=1
  mkdir profile
  q firefox-esr --headless --no-remote --profile "$PWD/profile" --window-size=1000,700 --screenshot "$PWD/shot.png" "file://$PWD/page.html" 2>err || echo "status $?"
  cat err >&2
  head -c 4 shot.png | od -c | head -n 1
}
