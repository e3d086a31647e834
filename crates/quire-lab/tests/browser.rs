//! A report in a real browser: no error in its console, every plot drawn, nothing beyond
//! the edge of a phone's screen, dark where the reader wants it so.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use common::{Shape, run};
use quire_lab::report::{Report, html};
use quire_stats::Settings;
use serde_json::Value;

/// What looks at a page and writes what it sees at its end. Pages of reports have no
/// script; this one is added for the test.
const PROBE: &str = r#"<script>
addEventListener("load", () => {
  document.querySelectorAll("details").forEach(folded => folded.open = true);
  const svgs = [...document.querySelectorAll("svg")];
  const marks = "path,rect,line,text";
  const seen = svgs.map(svg => {
    const box = svg.getBoundingClientRect();
    const inside = [...svg.querySelectorAll(marks)].map(mark => mark.getBoundingClientRect());
    return {
      width: box.width, height: box.height, marks: inside.length,
      out: inside.filter(b => b.left < box.left - 3 || b.right > box.right + 3 ||
        b.top < box.top - 3 || b.bottom > box.bottom + 3).length,
      letters: Math.min(...[...svg.querySelectorAll("text")].map(t => t.getBoundingClientRect().height)),
      title: svg.querySelector("title").textContent,
    };
  });
  const result = {
    cut: [...document.querySelectorAll(".times .scroll")].filter(t => t.scrollWidth > t.clientWidth).length,
    times: document.querySelectorAll(".times .scroll").length,
    seen, wide: document.documentElement.scrollWidth, window: innerWidth,
    back: getComputedStyle(document.body).backgroundColor,
    loaded: performance.getEntriesByType("resource").length,
  };
  const out = document.createElement("pre");
  out.id = "probe";
  out.textContent = JSON.stringify(result);
  document.body.append(out);
});
</script>"#;

/// A browser that can run without a screen, where there is one.
fn browser() -> Option<&'static str> {
    let found = ["chromium", "chromium-browser", "google-chrome"]
        .into_iter()
        .find(|name| {
            let version = Command::new(name).arg("--version").output();
            version.is_ok_and(|done| done.status.success())
        });
    if found.is_none() {
        println!("SKIP: no chromium, chromium-browser or google-chrome: apt-get install chromium");
    }
    found
}

/// What the probe saw, and what the console said.
fn open(browser: &str, dir: &Path, page: &str, dark: bool) -> (Option<Value>, Vec<String>) {
    let file = dir.join("page.html");
    fs::write(&file, page).unwrap();
    let scheme = if dark { 0 } else { 1 };
    let done = Command::new("timeout")
        .args([
            "--signal=KILL",
            "120",
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
        ])
        .args([
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--enable-logging=stderr",
        ])
        .args(["--window-size=500,900", "--dump-dom"])
        .arg(format!("--user-data-dir={}", dir.join("profile").display()))
        .arg(format!("--blink-settings=preferredColorScheme={scheme}"))
        .arg(format!("file://{}", file.display()))
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&done.stderr);
    let console = log
        .lines()
        .filter(|line| line.contains("CONSOLE"))
        .map(str::to_owned)
        .collect();
    let dom = String::from_utf8_lossy(&done.stdout);
    let probe = dom
        .split_once("<pre id=\"probe\">")
        .and_then(|(_, rest)| rest.split_once("</pre>"));
    let text = probe.map(|(text, _)| {
        text.replace("&amp;", "&")
            .replace("&lt;", "<")
            .replace("&gt;", ">")
    });
    (
        text.and_then(|text| serde_json::from_str(&text).ok()),
        console,
    )
}

fn page(shape: &Shape) -> String {
    let settings = Settings {
        resamples: 200,
        ..Settings::default()
    };
    html::page(&Report::of(run(shape), settings))
}

#[test]
fn a_report_is_drawn_without_an_error() {
    let Some(browser) = browser() else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let long = Shape {
        benchmarks: &[
            "a benchmark with a name that does not fit a phone at all, and more of it",
            "b",
            "c",
        ],
        variants: &[
            (
                "a variant with a name that is long, far too long for a line of a plot on a phone",
                0.01,
            ),
            ("even", 0.02),
            ("slow", 0.03),
        ],
        ..Shape::default()
    };
    for shape in [Shape::default(), long] {
        let page = page(&shape);
        let count = page.matches("<svg").count();
        let mut backs = Vec::new();
        for dark in [false, true] {
            let probed = page.replace("</body>", &format!("{PROBE}</body>"));
            let (seen, console) = open(browser, dir.path(), &probed, dark);
            assert_eq!(console, [""; 0], "the console is not silent");
            let seen = seen.expect("the page was opened");
            let plots = seen["seen"].as_array().unwrap();
            assert_eq!(plots.len(), count);
            for plot in plots {
                let number = |name: &str| plot[name].as_f64().unwrap();
                assert!(number("width") > 300.0 && number("height") > 50.0, "{plot}");
                assert!(number("marks") >= 5.0, "{plot}");
                assert_eq!(
                    number("out"),
                    0.0,
                    "something lies outside of its plot: {plot}"
                );
                assert!(number("letters") > 9.0, "letters are too small: {plot}");
            }
            let (wide, window) = (
                seen["wide"].as_f64().unwrap(),
                seen["window"].as_f64().unwrap(),
            );
            assert!(
                wide <= window,
                "the page is {wide} wide in a window of {window}"
            );
            assert!(seen["times"].as_u64() > Some(0));
            assert_eq!(seen["cut"], 0, "a table of times goes off the screen");
            assert_eq!(seen["loaded"], 0, "something was loaded");
            backs.push(seen["back"].as_str().unwrap().to_owned());
        }
        assert_eq!(backs, ["rgb(255, 255, 255)", "rgb(22, 23, 26)"]);
    }
}

#[test]
fn an_error_would_be_seen() {
    let Some(browser) = browser() else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let bad = "<!DOCTYPE html><body><script>console.error('bad'); nothing.at.all()</script></body>";
    let (seen, console) = open(browser, dir.path(), bad, false);
    assert_eq!(seen, None);
    assert!(console.len() >= 2, "{console:?}");
}
