//! Results of other tools: small files in their formats, written for these tests, and what
//! real runs of Google Benchmark 1.7 and Criterion 0.5 wrote (`google-1.7.json`,
//! `criterion-0.5`).

use std::fs;
use std::path::{Path, PathBuf};

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use quire_lab::import::{self, csv, read, read_all};
use quire_lab::run::{Better, Execution, Header, Line, Metric, Run, TIME};
use tempfile::tempdir;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name)
}

fn times(run: &Run, benchmark: &str, variant: &str) -> Vec<Vec<f64>> {
    run.measurements(benchmark, variant, TIME)
}

/// Whether values agree but for rounding.
fn close(a: &[Vec<f64>], b: &[&[f64]]) -> bool {
    let same = |(a, b): (&f64, &f64)| (a - b).abs() <= b.abs() * 1e-12;
    a.len() == b.len()
        && a.iter()
            .zip(b)
            .all(|(a, b)| a.len() == b.len() && a.iter().zip(*b).all(same))
}

#[test]
fn hyperfine_runs_are_executions_of_commands() {
    let run = read(&data("hyperfine.json")).unwrap();
    assert_eq!(run.header.title, "hyperfine");
    assert_eq!(run.benchmarks(), ["command"]);
    assert_eq!(
        run.variants("command"),
        ["sort words", "sort words (threads=2)"]
    );
    let first = times(&run, "command", "sort words");
    assert!(close(&first, &[&[0.2], &[0.21], &[0.205]]), "{first:?}");
    let memory = run.measurements("command", "sort words", "peak memory");
    assert_eq!(memory, [[1048576.0], [2097152.0], [1048576.0]]);
    assert_eq!(run.header.metrics["peak memory"].unit, "bytes");
    let reasons: Vec<&str> = run.failures.iter().map(|f| f.reason.as_str()).collect();
    assert_eq!(reasons, ["run 4: exit status 1", "run 3: killed"]);
    let mut all = run;
    all.take_failed().unwrap();
    assert_eq!(times(&all, "command", "sort words").len(), 4);
    assert_eq!(times(&all, "command", "sort words (threads=2)").len(), 3);
}

#[test]
fn google_repetitions_are_measurements_of_one_execution() {
    let run = read(&data("google.json")).unwrap();
    let all = times(&run, "copy/64", "default");
    assert!(close(&all, &[&[2.5e-6, 3.5e-6]]), "{all:?}");
    let rate = run.measurements("copy/64", "default", "bytes_per_second");
    assert_eq!(rate, [[1e9, 2e9]]);
    assert_eq!(
        run.header.metrics["bytes_per_second"].better,
        Better::Higher
    );
    assert_eq!(
        run.measurements("copy/64", "default", "misses"),
        [[12.0, 14.0]]
    );
    assert_eq!(run.primary_metrics(), [TIME]);
    assert_eq!(run.failures[0].reason, "no memory");
    assert_eq!(run.header.environment["host_name"], "bench");
    assert!(run.header.warnings[0].contains("performance"));
}

/// A real file: complexities and a variation of nothing (`NaN`) among the aggregates.
#[test]
fn what_google_benchmark_wrote_is_read() {
    let run = read(&data("google-1.7.json")).unwrap();
    assert_eq!(run.benchmarks(), ["copy/1024", "copy/4096"]);
    let all = times(&run, "copy/1024", "default");
    let wrote = [2.5912237503253971e-8, 1.9109758727330266e-8];
    assert!(close(&all, &[&wrote]), "{all:?}");
    let cpu = run.measurements("copy/1024", "default", "cpu time");
    assert!(close(
        &cpu,
        &[&[8.489310675407253e-9, 7.753532612241169e-9]]
    ));
    assert_eq!(
        run.measurements("copy/4096", "default", "misses"),
        [[0.0, 0.0]]
    );
    let metrics: Vec<&str> = run.header.metrics.keys().map(String::as_str).collect();
    assert_eq!(metrics, ["bytes_per_second", "cpu time", "misses", TIME]);
    let reasons: Vec<&str> = run.failures.iter().map(|f| f.reason.as_str()).collect();
    assert_eq!(reasons, ["no device"; 2]);
    assert!(run.header.warnings[0].contains("without optimisation"));
}

#[test]
fn what_google_benchmark_skips_is_no_measurement() {
    let entry = |more: &str| {
        format!(
            "{{\"context\": {{}}, \"benchmarks\": [{{\"name\": \"a\", \"real_time\": 0{more}}}]}}"
        )
    };
    let dir = tempdir().unwrap();
    let path = dir.path().join("g.json");
    fs::write(&path, entry("")).unwrap();
    assert_eq!(times(&read(&path).unwrap(), "a", "default"), [[0.0]]);
    let skipped =
        ", \"skipped\": true, \"skip_message\": \"not \\\"NaN\\\" here\", \"x\": -Infinity";
    fs::write(&path, entry(skipped)).unwrap();
    let run = read(&path).unwrap();
    assert_eq!(run.executions, []);
    assert_eq!(run.failures[0].reason, "not \"NaN\" here");
}

/// A real directory: a name that is no name of a directory, no function, three baselines.
#[test]
fn what_criterion_wrote_is_read() {
    let run = read(&data("criterion-0.5")).unwrap();
    assert_eq!(run.benchmarks(), ["alone: a/b", "sums/100"]);
    assert_eq!(run.variants("alone: a/b"), ["default"]);
    assert_eq!(run.variants("sums/100"), ["fast"]);
    for (benchmark, variant) in [("alone: a/b", "default"), ("sums/100", "fast")] {
        let times = times(&run, benchmark, variant);
        assert_eq!((times.len(), times[0].len()), (1, 10));
        assert!(times.concat().iter().all(|t| (1e-11..1e-6).contains(t)));
    }
    // The mean is what Criterion's own estimates.json has for the slope.
    let fast = times(&run, "sums/100", "fast").concat();
    let mean = fast.iter().sum::<f64>() / fast.len() as f64;
    assert!(
        (mean / 12.595_013_190_355_216e-9 - 1.0).abs() < 1e-9,
        "{mean}"
    );
    for baseline in ["base", "mine"] {
        let run = read(&data(&format!("criterion-0.5@{baseline}"))).unwrap();
        assert_eq!(times(&run, "sums/100", "fast")[0].len(), 10);
    }
}

#[test]
fn pyperf_processes_are_executions() {
    let run = read(&data("pyperf.json")).unwrap();
    let telco = times(&run, "telco", "default");
    assert!(
        close(&telco, &[&[0.021, 0.022], &[0.023, 0.024]]),
        "{telco:?}"
    );
    assert_eq!(run.measurements("peak", "default", "memory"), [[4096.0]]);
    assert_eq!(run.header.environment["python_version"], "3.11.2");
}

#[test]
fn rebench_invocations_are_executions_of_executors() {
    let run = read(&data("rebench.data")).unwrap();
    assert_eq!(run.benchmarks(), ["bounce", "bounce -x 2"]);
    assert_eq!(run.variants("bounce"), ["vm-a", "vm-b"]);
    let first = times(&run, "bounce", "vm-a");
    assert!(close(&first, &[&[0.0125, 0.0135], &[0.0145]]), "{first:?}");
    let memory = run.measurements("bounce", "vm-a", "MaxRSS");
    assert_eq!(memory, [[2.0 * 1048576.0]]);
}

#[test]
fn criterion_functions_are_variants_of_groups() {
    let run = read(&data("criterion")).unwrap();
    assert_eq!(run.benchmarks(), ["sums/100"]);
    assert_eq!(run.variants("sums/100"), ["fast", "slow"]);
    // Criterion's estimate of batches of growing length is the slope: Σtn/Σn² = 144/1400 us.
    let fast = times(&run, "sums/100", "fast").concat();
    let mean = fast.iter().sum::<f64>() / fast.len() as f64;
    assert_eq!(fast.len(), 3);
    assert!((mean / (144e-6 / 1400.0) - 1.0).abs() < 1e-12, "{fast:?}");
    let base = read(&data("criterion@base")).unwrap();
    assert!(close(&times(&base, "sums/100", "slow"), &[&[4e-7]]));
    let missing = read(&data("criterion@old")).unwrap_err().to_string();
    assert!(
        missing.contains("no baseline `old`; there are: base, new"),
        "{missing}"
    );
}

#[test]
fn a_single_file_of_criterion_is_enough() {
    let sample = data("criterion/sums/fast/100/new/sample.json");
    let whole = read(&data("criterion")).unwrap();
    let of = |path: &Path| times(&read(path).unwrap(), "sums/100", "fast");
    assert_eq!(of(&sample), times(&whole, "sums/100", "fast"));
    let estimates = sample.with_file_name("estimates.json");
    assert_eq!(of(&estimates), of(&sample), "the sample lies beside it");
    let dir = tempdir().unwrap();
    let alone = dir.path().join("estimates.json");
    fs::copy(&estimates, &alone).unwrap();
    let run = read(&alone).unwrap();
    assert!(close(
        &run.executions
            .iter()
            .map(|e| e.metrics.get(TIME).unwrap().clone())
            .collect::<Vec<_>>(),
        &[&[1.033e-7]]
    ));
    assert!(run.header.warnings[0].contains("sample.json"));
}

#[test]
fn several_files_are_further_executions() {
    let dir = tempdir().unwrap();
    for (name, value) in [("1.csv", "1"), ("2.csv", "2"), (".hidden", "x")] {
        fs::write(dir.path().join(name), format!("value\n{value}\n")).unwrap();
    }
    let joined = read(dir.path()).unwrap();
    assert_eq!(times(&joined, "benchmark", "default"), [[1.0], [2.0]]);
    let orders: Vec<u64> = joined.executions.iter().map(|e| e.order).collect();
    assert_eq!(orders, [0, 1]);
    let google = read_all(&[data("google.json"), data("google.json")]).unwrap();
    assert_eq!(times(&google, "copy/64", "default").len(), 2);
    assert_eq!(google.header.environment["host_name"], "bench");
}

#[test]
fn machines_that_differ_are_named() {
    let dir = tempdir().unwrap();
    let paths = ["a", "b"].map(|host| {
        let path = dir.path().join(host);
        let text = fs::read_to_string(data("google.json")).unwrap();
        fs::write(&path, text.replace("\"bench\"", &format!("\"{host}\""))).unwrap();
        path
    });
    let run = read_all(&paths).unwrap();
    let warnings = &run.header.warnings;
    assert!(
        warnings.iter().any(|w| w.contains("differ in host_name")),
        "{warnings:?}"
    );
    assert_eq!(run.header.environment["host_name"], "a | b");
}

#[test]
fn metrics_that_disagree_cannot_be_joined() {
    let dir = tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let paths = [
        write("a.csv", "value,unit\n1,s\n"),
        write("b.csv", "value,unit\n1,bytes\n"),
    ];
    let error = read_all(&paths).unwrap_err().to_string();
    assert!(error.contains("b.csv") && error.contains("time"), "{error}");
}

/// The message about a file that holds this.
fn error(text: &str) -> String {
    let dir = tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, text).unwrap();
    let message = read(&path).unwrap_err().to_string();
    let prefix = path.display().to_string();
    let rest = message.strip_prefix(&prefix).expect("the file is named");
    assert!(!rest.contains('\n'), "{rest}");
    rest.to_owned()
}

#[test]
fn bad_input_is_named_with_its_place() {
    for (text, words) in [
        ("", ": it is empty"),
        ("\n \n", ": it is empty"),
        ("hello\nworld\n", ":1: it is no file of results"),
        ("{\n\"results\": [,]}", ":2: column 13: "),
        ("{\"a\": 1}", ": it is JSON of no known tool"),
        ("[1]", ": it is JSON of no known tool"),
        ("{\"results\": 5}", ": results: it is no list"),
        ("{\"results\": []}", ": it holds no times"),
        (
            "{\"results\": [{\"times\": [1]}]}",
            ": results[0]: `command` is missing",
        ),
        (
            "{\"results\": [{\"command\": \"a\"}]}",
            ": results[0]: `times` is missing",
        ),
        (
            "{\"results\": [{\"command\": \"a\", \"times\": [1, \"x\"]}]}",
            ": results[0].times[1]: \"x\" is no number",
        ),
        (
            "{\"results\": [{\"command\": \"a\", \"times\": [1e999]}]}",
            ":1: column ",
        ),
        (
            "{\"context\": {}, \"benchmarks\": [{}]}",
            ": benchmarks[0]: `name` is missing",
        ),
        (
            "{\"context\": {}, \"benchmarks\": [{\"name\": \"a\", \"real_time\": 1, \"time_unit\": \"h\"}]}",
            ": benchmarks[0].time_unit: `h` is no unit of time",
        ),
        (
            "{\"context\": {}, \"benchmarks\": [{\"name\": \"a\", \"run_type\": \"aggregate\"}]}",
            ": it holds no repetitions",
        ),
        (
            "{\"context\": {}, \"benchmarks\": [{\"name\": \"a\", \"real_time\": NaN}]}",
            ": benchmarks[0].real_time: \"NaN\" is no number",
        ),
        (
            "{\"benchmarks\": [{}]}",
            ": benchmarks[0]: `runs` is missing",
        ),
        (
            "{\"benchmarks\": [{\"runs\": [{}, {\"values\": [null]}]}]}",
            ": benchmarks[0].runs[1].values[0]: null is no number",
        ),
        (
            "{\"benchmarks\": [{\"runs\": [{}]}]}",
            ": none of its runs has values",
        ),
        (
            "{\"iters\": [1, 2], \"times\": [1]}",
            ": times: there are 1 times and 2 counts of iterations",
        ),
        (
            "{\"iters\": [0], \"times\": [1]}",
            ": iters[0]: it is not above zero",
        ),
        (
            "1\t1\t5\tms\ttotal\tb\te\ts\n1\tx\t5\tms\ttotal\tb\te\ts\n",
            ":2: iteration: `x`",
        ),
        (
            "1\t1\t5\tms\ttotal\tb\te\ts\n# ok\n1\t2\t5\n",
            ":3: it has 3 cells",
        ),
        (
            "1\t1\tNaN\tms\ttotal\tb\te\ts\n",
            ":1: value: `NaN` is no number",
        ),
        (
            "benchmark,value\na,1\na,fast\n",
            ":3: value: `fast` is no number",
        ),
        (
            "{\"kind\":\"header\",\"format\":9,\"title\":\"\",\"started\":0,\"seed\":1,\"metrics\":{}}\n",
            ":1: format 9",
        ),
    ] {
        let message = error(text);
        assert!(message.starts_with(words), "{text:?}: {message}");
    }
}

#[test]
fn what_is_no_text_is_named() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("file");
    let message = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        read(&path).unwrap_err().to_string()
    };
    assert!(message(b"value\n\xff\n").contains(":2: it is not UTF-8"));
    assert!(message(b"\x1f\x8b\x08").contains("gunzip"));
    let missing = read(&dir.path().join("none")).unwrap_err().to_string();
    assert!(missing.contains("none: No such file"), "{missing}");
    fs::remove_file(&path).unwrap();
    let empty = read(dir.path()).unwrap_err().to_string();
    assert!(empty.contains("holds no results"), "{empty}");
}

#[test]
fn results_of_quire_are_read_as_they_are() {
    let header = Header {
        format: 1,
        title: "mine".into(),
        ..Header::default()
    };
    let execution = Execution {
        benchmark: "fft".into(),
        variant: "a".into(),
        metrics: [(TIME.to_owned(), vec![1.5])].into(),
        ..Execution::default()
    };
    let lines = [Line::Header(header), Line::Execution(execution)];
    let text: String = lines.iter().map(|line| line.text().unwrap()).collect();
    let dir = tempdir().unwrap();
    let path = dir.path().join("run.jsonl");
    fs::write(&path, text).unwrap();
    let run = read(&path).unwrap();
    assert_eq!(run.header.title, "mine");
    assert_eq!(times(&run, "fft", "a"), [[1.5]]);
}

/// Names with everything that could break a table.
fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z]{1,8}",
        "[ -~]{0,12}",
        "[a-z,;\"\n\t\r-]{0,8}",
        Just("-".to_owned())
    ]
}

fn run() -> impl Strategy<Value = Run> {
    let value = prop_oneof![-1e300f64..1e300, Just(0.0), 1e-9f64..1.0];
    let metric = prop_oneof![Just(TIME.to_owned()), name()];
    let metrics = btree_map(metric, vec(value, 1..4), 1..3);
    let execution = (name(), name(), metrics).prop_map(|(benchmark, variant, metrics)| Execution {
        benchmark,
        variant,
        metrics: metrics.into(),
        ..Execution::default()
    });
    let kinds = btree_map(
        name(),
        (prop_oneof![Just("s"), Just(""), Just("a b")], any::<bool>()),
        0..4,
    );
    (vec(execution, 1..8), kinds).prop_map(|(executions, kinds)| {
        let mut run = Run::default();
        for (name, (unit, higher)) in kinds {
            let better = if higher {
                Better::Higher
            } else {
                Better::Lower
            };
            let metric = Metric {
                unit: unit.into(),
                better,
                primary: false,
            };
            run.header.metrics.insert(name, metric);
        }
        for (order, execution) in (0..).zip(executions) {
            run.add(Execution { order, ..execution }).unwrap();
        }
        run
    })
}

proptest! {
    #[test]
    fn what_is_written_as_csv_is_read(run in run()) {
        let dir = tempdir().unwrap();
        let path = dir.path().join("run.csv");
        fs::write(&path, csv::text(&run)).unwrap();
        let again = read(&path).unwrap();
        prop_assert_eq!(&again.executions, &run.executions);
        for (name, metric) in &again.header.metrics {
            prop_assert_eq!(metric, &run.header.metrics[name]);
        }
        prop_assert_eq!(csv::text(&again), csv::text(&run));
    }

    #[test]
    fn no_text_makes_it_panic(text in "[{}\\[\\]\",:a-z0-9.\t\n-]{0,80}") {
        let dir = tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, &text).unwrap();
        let _ = import::read(&path);
    }

    #[test]
    fn what_is_cut_off_is_refused_or_smaller(part in 0.0f64..1.0) {
        for name in ["hyperfine.json", "google.json", "pyperf.json"] {
            let text = fs::read_to_string(data(name)).unwrap();
            let end = (text.trim_end().len() as f64 * part) as usize;
            let dir = tempdir().unwrap();
            let path = dir.path().join("file");
            fs::write(&path, &text[..end]).unwrap();
            let message = import::read(&path).unwrap_err().to_string();
            prop_assert!(message.starts_with(&path.display().to_string()), "{}", message);
        }
    }
}
