//! Programs of Debian that compress and decompress: a process for each operation, from
//! its start to its end. Where a benchmark decompresses, its input is made before.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::figure3::inputs;
use crate::set::{Work, picture};

/// Bytes of text that are compressed.
const TEXT: usize = 512 << 10;

/// A call that reads the standard input and writes the standard output. The word
/// [`INPUT`] in its arguments stands for the name of the input, and [`OUTPUT`] for that
/// of the output.
type Call = &'static [&'static str];

const INPUT: &str = "INPUT";
const OUTPUT: &str = "OUTPUT";

/// What a program works on, at the end or at the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    /// Words.
    Text,
    /// A picture that has to come out as it was.
    Picture,
    /// A picture of which some is lost.
    Photograph,
}

/// A program of the set.
#[derive(Debug)]
pub struct Tool {
    /// Its name, which is the benchmark's.
    pub program: &'static str,
    /// How it is installed.
    remedy: &'static str,
    content: Content,
    /// What makes its input of the content, where that is not the input.
    made_by: Option<Call>,
    call: Call,
    /// What makes the content of its output, where that is not the content.
    undone_by: Option<Call>,
}

const GZIP: Call = &["gzip", "-9", "-c"];
const GUNZIP: Call = &["gunzip", "-c"];
const BZIP2: Call = &["bzip2", "-c"];
const BUNZIP2: Call = &["bunzip2", "-c"];
const XZ: Call = &["xz", "-6", "-T1", "-c"];
const UNXZ: Call = &["unxz", "-T1", "-c"];
const CJPEG: Call = &["cjpeg", "-quality", "90", "-dct", "int"];
const DJPEG: Call = &["djpeg", "-dct", "int", "-pnm"];
const PNMTOPNG: Call = &["pnmtopng", "-quiet"];
const PNGTOPNM: Call = &["pngtopnm", "-quiet"];
const OPTIPNG: Call = &[
    "optipng", "-quiet", "-clobber", "-o1", "-out", OUTPUT, INPUT,
];

const fn packs(remedy: &'static str, content: Content, call: Call, undone_by: Call) -> Tool {
    Tool {
        program: call[0],
        remedy,
        content,
        made_by: None,
        call,
        undone_by: Some(undone_by),
    }
}

const fn unpacks(remedy: &'static str, content: Content, made_by: Call, call: Call) -> Tool {
    Tool {
        program: call[0],
        remedy,
        content,
        made_by: Some(made_by),
        call,
        undone_by: None,
    }
}

/// All of them.
pub static TOOLS: [Tool; 11] = [
    packs("apt-get install gzip", Content::Text, GZIP, GUNZIP),
    unpacks("apt-get install gzip", Content::Text, GZIP, GUNZIP),
    packs("apt-get install bzip2", Content::Text, BZIP2, BUNZIP2),
    unpacks("apt-get install bzip2", Content::Text, BZIP2, BUNZIP2),
    packs("apt-get install xz-utils", Content::Text, XZ, UNXZ),
    unpacks("apt-get install xz-utils", Content::Text, XZ, UNXZ),
    packs(
        "apt-get install libjpeg-turbo-progs",
        Content::Photograph,
        CJPEG,
        DJPEG,
    ),
    unpacks(
        "apt-get install libjpeg-turbo-progs",
        Content::Photograph,
        CJPEG,
        DJPEG,
    ),
    packs(
        "apt-get install netpbm",
        Content::Picture,
        PNMTOPNG,
        PNGTOPNM,
    ),
    unpacks(
        "apt-get install netpbm",
        Content::Picture,
        PNMTOPNG,
        PNGTOPNM,
    ),
    Tool {
        program: "optipng",
        remedy: "apt-get install optipng netpbm",
        content: Content::Picture,
        made_by: Some(PNMTOPNG),
        call: OPTIPNG,
        undone_by: Some(PNGTOPNM),
    },
];

impl Content {
    fn bytes(self) -> Vec<u8> {
        match self {
            Content::Text => inputs::text(TEXT).into_bytes(),
            Content::Picture | Content::Photograph => picture::ppm(),
        }
    }

    /// Compares what came out with what went in.
    fn compare(self, found: &[u8], expected: &[u8]) -> Result<()> {
        if self == Content::Photograph {
            return picture::alike(found, expected);
        }
        let first = found.iter().zip(expected).position(|(a, b)| a != b);
        if let Some(at) = first {
            anyhow::bail!("byte {at} is not what it was");
        }
        let (found, expected) = (found.len(), expected.len());
        ensure!(found == expected, "it has {found} bytes and not {expected}");
        Ok(())
    }
}

impl Tool {
    /// The programs that it needs, each with what to do where it is missing.
    pub fn needs(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let calls = [self.made_by, Some(self.call), self.undone_by];
        let remedy = self.remedy;
        calls
            .into_iter()
            .flatten()
            .map(move |call| (call[0], remedy))
    }
}

/// Executes a call.
fn execute(call: Call, input: &Path, output: &Path) -> Result<()> {
    let args = call[1..].iter().map(|word| match *word {
        INPUT => input.as_os_str(),
        OUTPUT => output.as_os_str(),
        other => other.as_ref(),
    });
    let file = |path: &Path| path.display().to_string();
    let status = Command::new(call[0])
        .args(args)
        .stdin(File::open(input).with_context(|| file(input))?)
        .stdout(File::create(output).with_context(|| file(output))?)
        .stderr(Stdio::null())
        .status()
        .with_context(|| format!("starting {}", call[0]))?;
    ensure!(status.success(), "{}: {status}", call[0]);
    Ok(())
}

/// A program with its input.
pub struct Run {
    tool: &'static Tool,
    content: Vec<u8>,
    input: PathBuf,
    output: PathBuf,
    dir: TempDir,
}

impl Run {
    /// Makes the input, in a directory of its own.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn prepare(tool: &'static Tool) -> Result<Run> {
        let dir = tempfile::tempdir()?;
        let run = Run {
            tool,
            content: tool.content.bytes(),
            input: dir.path().join("input"),
            output: dir.path().join("output"),
            dir,
        };
        match tool.made_by {
            None => fs::write(&run.input, &run.content)?,
            Some(call) => {
                let plain = run.dir.path().join("plain");
                fs::write(&plain, &run.content)?;
                execute(call, &plain, &run.input)?;
            }
        }
        Ok(run)
    }
}

impl Work for Run {
    fn operate(&mut self) -> Result<()> {
        execute(self.tool.call, &self.input, &self.output)
    }

    fn check(&mut self) -> Result<()> {
        let content = match self.tool.undone_by {
            None => self.output.clone(),
            Some(call) => {
                let undone = self.dir.path().join("undone");
                execute(call, &self.output, &undone).context("it cannot be undone")?;
                undone
            }
        };
        let found = fs::read(content)?;
        self.tool.content.compare(&found, &self.content)
    }

    fn spoil(&mut self) -> Result<()> {
        let output = File::options().write(true).open(&self.output)?;
        let length = output.metadata()?.len();
        Ok(output.set_len(length / 2)?)
    }
}
