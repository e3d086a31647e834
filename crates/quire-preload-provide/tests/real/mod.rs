//! Programs of the system under the library.

mod redis;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::harness::{Program, process, setting::Setting, skip};

/// Runs `argv` in a directory that `prepare` has filled.
fn check(
    name: &str,
    argv: &[&str],
    result: Option<&str>,
    prepare: &dyn Fn(&Path),
    setting: &Setting,
) {
    let Some(program) = process::find(argv[0]) else {
        return skip(&format!("{} is not installed", argv[0]));
    };
    let mut words = vec![OsString::from(program)];
    words.extend(argv[1..].iter().map(OsString::from));
    Program {
        name,
        argv: words,
        prepare,
        result,
        memory_limit: None,
    }
    .check(setting);
}

fn put(name: &'static str, content: &'static str) -> impl Fn(&Path) {
    move |directory| fs::write(directory.join(name), content).expect("the directory is ours")
}

/// Lines of words and numbers in no order, always the same.
fn text(lines: u64) -> String {
    let mut text = String::new();
    let mut state = 1u64;
    for line in 0..lines {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let (a, b) = (state >> 40, state >> 20 & 0xfffff);
        let _ = writeln!(text, "{a:06x} word{} {line} {b}", b % 5000);
    }
    text
}

fn put_text(directory: &Path) {
    fs::write(directory.join("text"), text(300_000)).expect("the directory is ours");
}

/// A C file that makes the compiler use some ten MiB.
fn put_source(directory: &Path) {
    let mut source = String::from("#include <stdio.h>\n#include <string.h>\n");
    for n in 0..250 {
        let _ = writeln!(
            source,
            "struct s{n} {{ int a[{}]; struct s{n} *next; }};\n\
             static int f{n}(struct s{n} *s, int x) {{\n\
               int sum = x;\n\
               for (; s; s = s->next)\n\
                 for (unsigned i = 0; i < sizeof s->a / sizeof *s->a; i++)\n\
                   switch (s->a[i] % 5) {{ case 0: sum += {n}; break; case 1: sum ^= i; break;\n\
                     case 2: sum *= 3; break; default: printf(\"%d {n}\\n\", sum); }}\n\
               return sum;\n}}\n\
             int g{n}(void *p, int x) {{ return f{n}(p, x + {n}); }}",
            n % 17 + 1
        );
    }
    fs::write(directory.join("large.c"), source).expect("the directory is ours");
}

/// Python, the system's if there is one: other users may run that.
fn python(setting: &Setting) {
    let system = "/usr/bin/python3";
    let python = if fs::exists(system).unwrap_or(false) {
        system
    } else {
        "python3"
    };
    check(
        "python",
        &[python, "work.py"],
        None,
        &put("work.py", include_str!("work.py")),
        setting,
    );
}

fn sqlite(setting: &Setting) {
    let argv = ["sqlite3", ":memory:", ".read work.sql"];
    check(
        "sqlite",
        &argv,
        None,
        &put("work.sql", include_str!("work.sql")),
        setting,
    );
}

fn gcc(setting: &Setting) {
    let argv = ["gcc", "-O2", "-c", "large.c", "-o", "large.o"];
    check("gcc", &argv, Some("large.o"), &put_source, setting);
}

fn perl(setting: &Setting) {
    let script = r#"
        while (<>) { last if $. > 80000; my @f = split; $sum{$f[1]} += $f[3]; $last{$f[0]} = $_; push @all, \@f; }
        print "$_ $sum{$_}\n" for sort keys %sum;
        print scalar(keys %last), "\n";
        for my $i (1 .. 20) { my $p = fork; if (!$p) { $_->[1] = "x" for @all; exit($i) }
                              waitpid $p, 0; print $? >> 8, "\n"; }
        print join(",", @{$all[$_ * 700]}), "\n" for 0 .. 100;"#;
    check(
        "perl",
        &["perl", "-e", script, "text"],
        None,
        &put_text,
        setting,
    );
}

fn awk(setting: &Setting) {
    let script = r#"{ n[$2]++; s[$1] = s[$1] $3; t[NR] = $0 } END { for (i = 1; i <= NR; i += 997)
        print t[i]; for (w in n) k++; print k; print length(s["00002a"]), NR }"#;
    check("awk", &["awk", script, "text"], None, &put_text, setting);
}

fn sort(setting: &Setting) {
    let argv = [
        "sort",
        "--parallel=4",
        "-S",
        "150M",
        "-k2,2",
        "-k4,4n",
        "-o",
        "sorted",
        "text",
        "text",
    ];
    check("sort", &argv, Some("sorted"), &put_text, setting);
}

fn xz(setting: &Setting) {
    // Not in place, for which it wants to change the group of the result.
    let argv = ["sh", "-c", "xz -0 -T2 --block-size=2MiB -c text > text.xz"];
    check("xz", &argv, Some("text.xz"), &put_text, setting);
}

fn gzip(setting: &Setting) {
    check(
        "gzip",
        &["gzip", "-1", "-n", "text"],
        Some("text.gz"),
        &put_text,
        setting,
    );
}

fn bash(setting: &Setting) {
    let script = r#"
        big=$(head -c 8000000 text); echo ${#big}
        for i in {1..15}; do x=$(echo "$i ${#big}" | tr 0-9 a-j); ( big=; echo "$x ${#big}" ); done
        for i in {1..10}; do ( echo "${big:i*1000:10}" ) & wait $!; done
        echo ${#big}"#;
    check("bash", &["bash", "-c", script], None, &put_text, setting);
}

fn java(setting: &Setting) {
    let argv = ["java", "-XX:+UseSerialGC", "-Xmx400m", "Main.java"];
    check(
        "java",
        &argv,
        None,
        &put("Main.java", include_str!("Main.java")),
        setting,
    );
}

fn java_parallel(setting: &Setting) {
    let argv = [
        "java",
        "-XX:+UseParallelGC",
        "-Xms64m",
        "-Xmx400m",
        "Main.java",
    ];
    check(
        "java parallel",
        &argv,
        None,
        &put("Main.java", include_str!("Main.java")),
        setting,
    );
}

macro_rules! programs {
    ($($name:ident: $($test:ident = $setting:ident),*;)*) => {$(
        mod $name {
            $(#[test]
            fn $test() {
                super::$name(&crate::harness::setting::$setting);
            })*
        }
    )*};
}

programs! {
    python: reserve = RESERVE, static_pool = STATIC, unprivileged = UNPRIVILEGED, colour = COLOUR;
    sqlite: reserve = RESERVE, static_pool = STATIC, unprivileged = UNPRIVILEGED, colour = COLOUR;
    gcc: reserve = RESERVE, colour = COLOUR;
    perl: reserve = RESERVE, colour = COLOUR;
    awk: reserve = RESERVE;
    sort: reserve = RESERVE, colour = COLOUR;
    xz: reserve = RESERVE, colour = COLOUR;
    gzip: reserve = RESERVE;
    bash: reserve = RESERVE, colour = COLOUR;
    java: reserve = RESERVE, static_pool = STATIC, unprivileged = UNPRIVILEGED, colour = COLOUR;
    java_parallel: reserve = RESERVE, ahead = RESERVE_AHEAD;
}
