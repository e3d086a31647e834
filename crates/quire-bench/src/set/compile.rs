//! Compilation of files that are part of this project: C with the system's compiler, and
//! Rust where there is one. A process for each operation, as for other programs.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::set::Work;

/// A file with its text.
type Source = (&'static str, &'static str);

const MATMUL: &[Source] = &[("matmul.c", include_str!("../../../../examples/matmul.c"))];
const SUBJECT: &[Source] = &[(
    "subject.c",
    include_str!("../../../quire-attach/tests/subject.c"),
)];
const STRESS: &[Source] = &[
    (
        "stress.c",
        include_str!("../../../quire-preload-provide/tests/programs/stress.c"),
    ),
    (
        "faults.h",
        include_str!("../../../quire-preload-provide/tests/programs/faults.h"),
    ),
    (
        "common.h",
        include_str!("../../../quire-preload-provide/tests/programs/common.h"),
    ),
];
const MODULES: &[Source] = &[
    (
        "modules.rs",
        "pub mod order;\npub mod queue;\npub mod random;\n",
    ),
    (
        "order.rs",
        include_str!("../../../quire-stats/src/order.rs"),
    ),
    ("queue.rs", include_str!("../../../quire-core/src/queue.rs")),
    (
        "random.rs",
        include_str!("../../../quire-stats/src/random.rs"),
    ),
];

/// The name of what is made.
const OUTPUT: &str = "output";
/// The name of what is made for comparison.
const AGAIN: &str = "again";

const C: &[&str] = &["cc", "-O2", "-w", "-pthread", "-c"];
const CHECKED: &[&str] = &[
    "rustc",
    "--edition=2024",
    "--crate-type=lib",
    "--cap-lints=allow",
    "--emit=metadata",
];
const OBJECT: &[&str] = &[
    "rustc",
    "--edition=2024",
    "--crate-type=lib",
    "--cap-lints=allow",
    "--emit=obj",
    "-Copt-level=2",
    "-Ccodegen-units=1",
];

/// A compilation.
#[derive(Debug)]
pub struct Job {
    /// The name of the benchmark.
    pub name: &'static str,
    /// The first file is compiled.
    sources: &'static [Source],
    call: &'static [&'static str],
    /// How the output begins.
    begins: &'static [u8],
}

const ELF: &[u8] = b"\x7fELF";

/// All of them.
pub static JOBS: [Job; 5] = [
    job("cc-matmul", MATMUL, C, ELF),
    job("cc-subject", SUBJECT, C, ELF),
    job("cc-stress", STRESS, C, ELF),
    job("rustc-metadata", MODULES, CHECKED, b"rust"),
    job("rustc-object", MODULES, OBJECT, ELF),
];

const fn job(
    name: &'static str,
    sources: &'static [Source],
    call: &'static [&'static str],
    begins: &'static [u8],
) -> Job {
    Job {
        name,
        sources,
        call,
        begins,
    }
}

impl Job {
    /// The compiler, and what to do where it is missing.
    pub fn needs(&self) -> (&'static str, &'static str) {
        match self.call[0] {
            "cc" => ("cc", "apt-get install gcc"),
            other => (other, "install Rust from https://rustup.rs"),
        }
    }
}

/// A compilation with its files.
pub struct Run {
    job: &'static Job,
    dir: TempDir,
}

impl Run {
    /// Writes the files into a directory of their own.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn prepare(job: &'static Job) -> Result<Run> {
        let dir = tempfile::tempdir()?;
        for (name, text) in job.sources {
            fs::write(dir.path().join(name), text)?;
        }
        Ok(Run { job, dir })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn compile(&self, output: &str) -> Result<()> {
        let [compiler, args @ ..] = self.job.call else {
            anyhow::bail!("no compiler");
        };
        let status = Command::new(compiler)
            .args(args)
            .args([self.job.sources[0].0, "-o", output])
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .status()
            .with_context(|| format!("starting {compiler}"))?;
        ensure!(status.success(), "{compiler}: {status}");
        Ok(())
    }
}

impl Work for Run {
    fn operate(&mut self) -> Result<()> {
        self.compile(OUTPUT)
    }

    /// Compiles again: the same files make the same output.
    fn check(&mut self) -> Result<()> {
        self.compile(AGAIN)?;
        let found = fs::read(self.file(OUTPUT))?;
        ensure!(
            found.starts_with(self.job.begins),
            "the compiler made something else"
        );
        ensure!(
            found == fs::read(self.file(AGAIN))?,
            "the compiler makes something else of the same files"
        );
        Ok(())
    }

    fn spoil(&mut self) -> Result<()> {
        let mut bytes = fs::read(self.file(OUTPUT))?;
        if let Some(last) = bytes.last_mut() {
            *last ^= 1;
        }
        Ok(fs::write(self.file(OUTPUT), bytes)?)
    }
}
