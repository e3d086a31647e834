//! The strategies that `quire run` was asked for, checked before the program starts.

use std::path::{Path, absolute};

use quire_core::frames::colour::Colours;
use quire_core::frames::config::FrameConfig;
use quire_core::frames::hints::{Hint, Hints};
use quire_core::frames::record::Record;
use quire_core::frames::spec::{PluginSpec, StrategySpec};
use quire_core::units::PageCount;
use quire_linux::plugin::Plugin;
use quire_linux::sysinfo::frame_kinds::{FrameKinds, Unusable};

use crate::args::RunArgs;
use crate::cache;
use crate::failure::{Failure, Outcome};

/// What the options ask for; nothing where they ask for nothing.
///
/// # Errors
/// When hints do not go together, a colour or a file does not exist, or a strategy is
/// not there.
pub fn config(options: &RunArgs) -> Outcome<FrameConfig> {
    if options.frames.is_none() && options.hint.is_empty() {
        return Ok(FrameConfig::default());
    }
    let hints = options.hint.iter().map(|hint| {
        Ok(Hint {
            target: hint.target.clone(),
            strategy: checked(&hint.strategy)?,
        })
    });
    let hints = hints.collect::<Outcome<Vec<Hint>>>()?;
    let default = options.frames.clone().unwrap_or_default();
    let colours = options
        .colour_bits
        .clone()
        .map_or_else(cache::needed_colours, Ok)?;
    let config = FrameConfig {
        default: checked(&default)?,
        hints: Hints::new(hints).map_err(|error| Failure::bad_usage(error.to_string()))?,
        colours: Some(colours.clone()),
        stock: options.stock,
    };
    config
        .check(&colours)
        .map_err(|error| Failure::bad_usage(error.to_string()))?;
    accepted(&config, &colours)?;
    Ok(config)
}

/// A strategy that can be built, with the whole name of its file: the program may
/// change its directory.
///
/// # Errors
/// When it is not there, or its file cannot be used.
pub fn checked(spec: &StrategySpec) -> Outcome<StrategySpec> {
    if let StrategySpec::Plugin(plugin) = spec {
        loaded(plugin)?;
        let path = absolute(Path::new(&plugin.path))
            .map_err(|error| Failure::bad_usage(format!("{}: {error}", plugin.path)))?;
        return Ok(StrategySpec::Plugin(PluginSpec {
            path: path.display().to_string(),
            argument: plugin.argument.clone(),
        }));
    }
    let Some(file) = spec.record_file() else {
        return Ok(spec.clone());
    };
    let refused = |why: String| Failure::bad_usage(format!("cannot use {file}: {why}"));
    let remedy = "write it with `quire map --csv`";
    let text = std::fs::read_to_string(file).map_err(|e| refused(format!("{e}; {remedy}")))?;
    let record: Result<Record, _> = text.parse();
    let record = record.map_err(|error| refused(error.to_string()))?;
    if let StrategySpec::Exact(_) = spec {
        usable(&record).map_err(refused)?;
    }
    let whole = absolute(Path::new(file)).map_err(|error| refused(error.to_string()))?;
    let whole = whole.display().to_string();
    Ok(match spec {
        StrategySpec::Exact(_) => StrategySpec::Exact(whole),
        _ => StrategySpec::ModuloFile(whole),
    })
}

/// Whether programs can have all recorded frames, as far as the kernel tells. Without the
/// privilege to know frames, no frame can be asked for anyway, which the program finds out.
fn usable(record: &Record) -> Result<(), String> {
    let Ok(kinds) = FrameKinds::open() else {
        return Ok(());
    };
    for run in record.runs() {
        let first = kinds.first_unusable(run.frame, run.pages);
        if let Ok(Some((frame, why))) = first {
            let page = run.page + PageCount(frame.0 - run.frame.0).to_bytes();
            let why = match why {
                Unusable::Absent => "does not exist on this machine",
                Unusable::Reserved => "is the kernel's",
                Unusable::Broken => "is broken memory",
            };
            return Err(format!(
                "frame {:x}, for address {:x}, {why}: leave the page out or record the mapping again",
                frame.0, page.0
            ));
        }
    }
    Ok(())
}

fn loaded(spec: &PluginSpec) -> Outcome<Plugin> {
    Plugin::load(Path::new(&spec.path)).map_err(|error| Failure::bad_usage(error.to_string()))
}

/// Whether plug-ins take their arguments, and these colours: each is asked once, here.
fn accepted(config: &FrameConfig, colours: &Colours) -> Outcome<()> {
    config.strategies().try_for_each(|spec| match spec {
        StrategySpec::Plugin(plugin) => loaded(plugin)?
            .strategy(colours, &plugin.argument, std::process::id())
            .map(drop)
            .map_err(|error| Failure::bad_usage(error.to_string())),
        _ => Ok(()),
    })
}
