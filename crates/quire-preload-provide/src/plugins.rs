//! The plug-ins that bring strategies for this process.
//!
//! They are loaded when the process starts and stay. A forked child has them, too, and
//! only makes new states: it may be in no condition to enter the loader, and the files
//! may have changed.

use std::path::Path;
use std::sync::OnceLock;

use quire_core::frames::colour::Colours;
use quire_core::frames::config::FrameConfig;
use quire_core::frames::spec::{PluginSpec, StrategySpec};
use quire_linux::plugin::{Plugin, PluginStrategy};
use quire_linux::thread;

/// Those that could be loaded, by their paths.
static LOADED: OnceLock<Vec<(String, Plugin)>> = OnceLock::new();

/// Loads the plug-ins that strategies name, if that has not been done.
pub fn load(config: &FrameConfig) {
    let loaded = |spec: &StrategySpec| match spec {
        StrategySpec::Plugin(PluginSpec { path, .. }) => {
            Some((path.clone(), Plugin::load(Path::new(path)).ok()?))
        }
        _ => None,
    };
    LOADED.get_or_init(|| config.strategies().filter_map(loaded).collect());
}

/// The strategy of a plug-in, for this process. `None` where it was not loaded or
/// refuses.
pub fn strategy(spec: &PluginSpec, colours: &Colours) -> Option<PluginStrategy> {
    let mut loaded = LOADED.get()?.iter();
    let (_, plugin) = loaded.find(|(path, _)| *path == spec.path)?;
    let process = thread::process_id();
    plugin.strategy(colours, &spec.argument, process).ok()
}
