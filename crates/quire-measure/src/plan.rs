//! `quire plan`: what to spend, from a pilot run.

use std::io::{self, Write};

use quire_lab::plan::{self as lab, Advice, Wish, advise};
use serde_json::{Value, json};

use crate::args::PlanArgs;
use crate::failure::{Failure, Outcome, called};
use crate::report::results;
use crate::table::{Table, shown};

/// Reads a pilot run and prints what each pair takes.
pub fn plan(options: &PlanArgs) -> Outcome<()> {
    let run = results(
        std::slice::from_ref(&options.results),
        options.ignore_failure,
    )?;
    let wish = Wish {
        precision: options.precision,
        cost_execution: options.cost_execution,
        cost_measurement: options.cost_measurement,
    };
    let advice = advise(&run, &wish);
    if advice.is_empty() {
        let path = options.results.display();
        return Err(Failure::bad_usage(format!(
            "{path} holds no execution that gave something; plan takes results of `{0} bench` and of \
             other tools, as `{0} report` does",
            called()
        )));
    }
    let mut stdout = io::stdout().lock();
    if options.json {
        let plans: Vec<Value> = advice.iter().map(plan_json).collect();
        let all = json!({
            "version": 1,
            "precision": wish.precision,
            "plans": plans,
            "seconds": lab::seconds(&advice),
            "common": lab::common(&advice, wish.precision),
        });
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
        let names = [&of.benchmark, &of.variant, &of.metric];
        let mut row: Vec<String> = names.map(|name| shown(name)).into();
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
        let (benchmark, variant) = (shown(&of.benchmark), shown(&of.variant));
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
    write_whole(out, advice, precision)
}

/// A line that is the same for all may take so many times as long as what each takes by itself.
const DEAR: f64 = 1.5;

/// How long all of it takes, and the command for it.
fn write_whole(out: &mut impl Write, advice: &[Advice], precision: f64) -> Outcome<()> {
    let Some(common) = lab::common(advice, precision) else {
        return Ok(());
    };
    let own = lab::seconds(advice);
    let command = |executions: usize, measurements: usize| match measurements {
        1 => format!("{} bench --runs {executions}", called()),
        n => format!("{} bench --runs {executions} --measurements {n}", called()),
    };
    if common.seconds <= DEAR * own {
        let command = command(common.executions, common.measurements);
        let seconds = common.seconds;
        writeln!(
            out,
            "All of them take {own:.1} s; with the same numbers for all, `{command}`, {seconds:.1} s."
        )?;
        return Ok(());
    }
    writeln!(
        out,
        "All of them take {own:.1} s, each by itself; the same numbers for all would take {:.1} s:",
        common.seconds
    )?;
    for of in advice {
        if let Ok(spend) = &of.spend {
            let command = command(spend.executions, spend.measurements);
            let names = shown(&format!("{}, {}", of.benchmark, of.variant));
            writeln!(out, "  {names}: `{command}`")?;
        }
    }
    Ok(())
}
