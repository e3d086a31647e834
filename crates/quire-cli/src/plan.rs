//! `quire plan`: what to spend, from a pilot run.

use std::io::{self, Write};

use quire_lab::plan::{Advice, Wish, advise};
use quire_lab::run::Run;
use serde_json::{Value, json};

use crate::args::PlanArgs;
use crate::failure::{Failure, Outcome};
use crate::table::Table;

/// Reads a pilot run and prints what each pair takes.
pub fn plan(options: &PlanArgs) -> Outcome<()> {
    let run = Run::read(&options.results).map_err(|error| Failure::bad_usage(error.to_string()))?;
    let wish = Wish {
        precision: options.precision,
        cost_execution: options.cost_execution,
        cost_measurement: options.cost_measurement,
    };
    let advice = advise(&run, &wish);
    if advice.is_empty() {
        let path = options.results.display();
        return Err(Failure::bad_usage(format!(
            "{path} holds no execution that gave something; run it again with `quire bench`"
        )));
    }
    let mut stdout = io::stdout().lock();
    if options.json {
        let plans: Vec<Value> = advice.iter().map(plan_json).collect();
        let all = json!({ "version": 1, "precision": wish.precision, "plans": plans });
        serde_json::to_writer_pretty(&mut stdout, &all)?;
        writeln!(stdout)?;
        return Ok(());
    }
    print(&mut stdout, &advice, wish.precision)
}

/// A plan; `absent` says why there is none.
fn plan_json(of: &Advice) -> Value {
    json!({
        "benchmark": of.benchmark,
        "variant": of.variant,
        "metric": of.metric,
        "spend": of.spend.as_ref().ok(),
        "absent": of.spend.as_ref().err(),
    })
}

fn print(out: &mut impl Write, advice: &[Advice], precision: f64) -> Outcome<()> {
    let percent = precision * 100.0;
    writeln!(
        out,
        "For means that are known to ±{percent} %, with 95 % confidence:"
    )?;
    let header = [
        "BENCHMARK",
        "VARIANT",
        "METRIC",
        "EXECUTIONS",
        "MEASUREMENTS",
        "TIME",
    ];
    let mut table = Table::new(3, &header);
    for of in advice {
        let mut row = vec![of.benchmark.clone(), of.variant.clone(), of.metric.clone()];
        match &of.spend {
            Ok(spend) => row.extend([
                spend.executions.to_string(),
                spend.measurements.to_string(),
                format!("{:.1} s", spend.seconds),
            ]),
            Err(_) => row.extend(["-", "-", "-"].map(String::from)),
        }
        table.row(row);
    }
    table.write(out, 2)?;
    for of in advice {
        let (benchmark, variant) = (&of.benchmark, &of.variant);
        match &of.spend {
            Err(why) => writeln!(out, "{benchmark}, {variant}: not known: {why}.")?,
            Ok(spend)
                if spend.variance_measurements.is_some() && spend.variance_executions <= 0.0 =>
            {
                writeln!(
                    out,
                    "{benchmark}, {variant}: executions add nothing that this pilot could see."
                )?;
            }
            Ok(_) => {}
        }
    }
    let known = advice.iter().filter_map(|of| of.spend.as_ref().ok());
    let most = known.clone().map(|spend| spend.executions).max();
    let counts = known.map(|spend| spend.measurements).max();
    if let (Some(executions), Some(measurements)) = (most, counts) {
        let measurements = match measurements {
            1 => String::new(),
            n => format!(" --measurements {n}"),
        };
        writeln!(
            out,
            "That is `quire bench --runs {executions}{measurements}` for all of them."
        )?;
    }
    Ok(())
}
