//! How the machine gives superpages to programs that do not ask.

use quire_core::units::Bytes;

use super::{bracketed, read_number, read_trimmed};

const DIRECTORY: &str = "/sys/kernel/mm/transparent_hugepage";

/// The setting `enabled` of transparent huge pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Setting {
    /// All private memory may have superpages at the first touch.
    Always,
    /// Memory may have them for which that is advised.
    #[default]
    Advised,
    /// None has them at the first touch.
    Never,
}

/// The setting; nothing where the kernel has no transparent huge pages, or does not say.
#[must_use]
pub fn setting() -> Option<Setting> {
    let text = read_trimmed(format!("{DIRECTORY}/enabled"))?;
    let of = |text: &str| match bracketed(text) {
        Some("always") => Some(Setting::Always),
        Some("madvise") => Some(Setting::Advised),
        Some("never") => Some(Setting::Never),
        _ => None,
    };
    // The size may have a setting of its own.
    let own = read_trimmed(format!("{DIRECTORY}/hugepages-2048kB/enabled"));
    own.and_then(|own| of(&own)).or_else(|| of(&text))
}

/// Whether the kernel makes folios that are smaller than a superpage where that is advised (Linux 6.8).
#[must_use]
pub fn small_folios_advised() -> bool {
    let text = |path: String| read_trimmed(path).unwrap_or_default();
    let all = text(format!("{DIRECTORY}/enabled"));
    // From 8 KiB to 1 MiB. The directory is not listed: this is called where nothing may be allocated.
    (3..=10).any(|order| {
        let own = text(format!("{DIRECTORY}/hugepages-{}kB/enabled", 1 << order));
        let wanted = |setting: &str| bracketed(setting) == Some("madvise");
        wanted(&own) || (bracketed(&own) == Some("inherit") && wanted(&all))
    })
}

/// How large a superpage is; nothing where the kernel does not say.
#[must_use]
pub fn superpage_size() -> Option<Bytes> {
    read_number(format!("{DIRECTORY}/hpage_pmd_size")).map(Bytes)
}
