//! `quire dsm certify`: certificates for nodes, and the CA that they are from.

use std::fs;
use std::path::Path;

use quire_dsm::link::identity::{Authority, IdentityError, Validity};

use crate::args::dsm::CertifyArgs;
use crate::failure::{Failure, Outcome};

/// So much longer than those of nodes the CA's own certificate is valid.
const LONGER: u32 = 10;

/// It is valid for at most so many days.
const LONGEST: u32 = 36_500;

/// Makes them.
pub fn certify(options: &CertifyArgs) -> Outcome<()> {
    let directory = &options.directory;
    fs::create_dir_all(directory)
        .map_err(|error| Failure::bad_usage(format!("{}: {error}", directory.display())))?;
    let authority = authority(directory, options.days).map_err(refused)?;
    let validity = Validity::days(options.days);
    let allowed = authority.allows(validity);
    allowed.map_err(|error| Failure::bad_usage(format!("--days: {error}")))?;
    for name in &options.names {
        let file = |end| directory.join(format!("{name}.{end}"));
        let pair = authority.issue(name, validity).map_err(refused)?;
        pair.write(&file("pem"), &file("key")).map_err(refused)?;
    }
    Ok(())
}

/// The CA of the directory, which is made where there is none.
pub fn authority(directory: &Path, days: u32) -> Result<Authority, IdentityError> {
    let file = |name| directory.join(name);
    let (certificate, key) = (file("ca.pem"), file("ca.key"));
    if key.exists() {
        return Authority::load(&certificate, &key);
    }
    let days = days.saturating_mul(LONGER).min(LONGEST);
    let authority = Authority::generate(Validity::days(days))?;
    authority.pair().write(&certificate, &key)?;
    Ok(authority)
}

fn refused(error: IdentityError) -> Failure {
    Failure::bad_usage(error.to_string())
}
