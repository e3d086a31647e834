//! `quire-bench`: the experiments that say what Quire gains, and what it costs.
//!
//! | module | holds |
//! |---|---|
//! | [`cli`] | what can be asked for |
//! | [`spec`] | the workloads and their metrics |
//! | [`target`] | what each workload has to reach, and whether it does |
//! | [`variant`] | the ways to run a program that are compared |
//! | [`schedule`] | which run comes when |
//! | [`launch`] | how a child process is started, bounded and stopped |
//! | [`guard`] | a process that puts settings back if this one is killed |
//! | [`host`] | what the host of a virtual machine does to a measurement |
//! | [`worker`] | workloads that run in a child process of this program |
//! | [`service`] | workloads that drive other programs |
//! | [`figure3`] | ten open programs, as in Figure 3 of paper 000 |
//! | [`colours`] | what strategies for frames cost and save (paper 002) |
//! | [`dsm`] | what shared memory across machines costs (paper 003) |
//! | [`set`] | the benchmark set: what paper 002 measured with |
//! | [`nondeterminism`] | how much that varies under strategies for frames (paper 002) |
//! | [`kernels`] | FFT, LU, SOR and others, of whose accesses somebody may be told |
//! | [`results`] | samples and their summaries |
//! | [`report`] | JSON, HTML and the table on the terminal |
//! | [`system`], [`cgroup`], [`procfs`], [`statpage`] | what the machine says |
//! | [`memory`] | every raw memory access of this program |

mod cgroup;
mod cli;
mod colours;
mod cpu;
mod dsm;
mod figure3;
mod guard;
mod host;
mod kernels;
mod launch;
mod memory;
mod nondeterminism;
mod processors;
mod procfs;
mod report;
mod results;
mod schedule;
mod service;
mod set;
mod spec;
mod statpage;
mod system;
mod target;
mod variant;
mod worker;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command};

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Superpages(options) => schedule::run(&options),
        Command::Colours(options) => colours::run(&options),
        Command::Nondeterminism(options) => nondeterminism::run(&options),
        Command::Dsm(options) => dsm::run(&options),
        Command::DsmWorker(options) => dsm::worker::run(&options),
        Command::Workload(options) => set::worker::run(&options),
        Command::PingServer { protocol } => set::ping::serve(protocol),
        Command::Worker(options) => worker::run(&options),
        Command::ColoursWorker(options) => worker::run_colours(&options),
        Command::Launch(options) => launch::exec(&options),
        Command::Guard => guard::serve(std::io::stdin().lock()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("quire-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
