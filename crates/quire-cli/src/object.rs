//! `quire object`: makes, lists, shows, copies and removes shared objects, and looks at the
//! stores in which servers keep them.

mod check;
mod copy;

use std::io::{self, Write};

use quire_core::dsm::types::{Report, TypeTag};
use quire_core::units::Bytes;
use quire_dsm::client::{Client, ClientError, Options};
use quire_dsm::wire::control::{
    Answer, Failure as Refusal, FailureKind, Faults, MachineCode, Name, Object, PageState,
    SchedulerKind, Segment, TypeCode,
};
use serde_json::{Value, json};
use tracing::Level;

use crate::args::dsm::{CreateArgs, ObjectAction, ObjectArgs, ServerArgs, tags};
use crate::failure::{Failure, Outcome};
use crate::serve;
use crate::table::Table;

/// Does what is asked for.
pub fn object(options: &ObjectArgs) -> Outcome<()> {
    // What goes wrong is told by the error.
    serve::log(Level::ERROR);
    match &options.action {
        ObjectAction::Create(made) => {
            let made = described(made)?;
            return connect(&options.server)?.create(made).map_err(failed);
        }
        ObjectAction::Check { directory, json } => return check::check(directory, *json),
        _ => {}
    }
    let client = connect(&options.server)?;
    match &options.action {
        ObjectAction::Create(_) | ObjectAction::Check { .. } => Ok(()),
        ObjectAction::Ls { json } => list(&client, *json),
        ObjectAction::Stat { name, pages, json } => {
            let known = client.statistics(name.clone(), *pages).map_err(failed)?;
            stat(known, *json)
        }
        ObjectAction::Rm { names } => {
            for name in names {
                client.remove(name.clone()).map_err(failed)?;
            }
            Ok(())
        }
        ObjectAction::Grant { name, to, rights } => {
            let (name, to) = (name.clone(), to.clone());
            client.grant(name, to, *rights).map_err(failed)
        }
        ObjectAction::Cp { from, to } => copy::copy(&client, from, to),
    }
}

fn connect(options: &ServerArgs) -> Outcome<Client> {
    Client::connect(reached(options)?).map_err(failed)
}

/// How a server is reached.
pub fn reached(options: &ServerArgs) -> Outcome<Options> {
    let mut wanted = Options::new(options.server.clone(), options.identity.clone());
    wanted.security = serve::security(&options.tls, &options.identity)?;
    Ok(wanted)
}

/// What a user is told.
pub fn failed(error: ClientError) -> Failure {
    match error {
        ClientError::Unreachable { .. } => Failure::system(format!(
            "{error}; start a server with `quire serve`, name another with --server, or \
             give it the certificate that it wants with --certificate"
        )),
        ClientError::Refused(Refusal {
            kind: FailureKind::NotFound | FailureKind::Exists | FailureKind::Invalid,
            ..
        }) => Failure::bad_usage(error.to_string()),
        _ => Failure::system(error.to_string()),
    }
}

/// An object as it is to be made.
fn described(options: &CreateArgs) -> Outcome<Object> {
    let tags = tags(&options.tags, options.size)
        .map_err(|error| Failure::bad_usage(format!("--tags: {error}")))?;
    Ok(Object {
        name: options.name.clone(),
        size: options.size,
        page_size: options.page_size,
        scheduler: options.scheduler,
        machine: MachineCode(0),
        tags: tags.segments().map(Segment::from).collect(),
    })
}

/// The name of a scheduler.
pub fn scheduler(kind: SchedulerKind) -> &'static str {
    match kind {
        SchedulerKind::Simple => "simple",
        SchedulerKind::Multi => "multi",
        SchedulerKind::Distributed => "distributed",
    }
}

fn types(object: &Object) -> String {
    let name = |code: TypeCode| code.tag().map_or("?", TypeTag::name);
    let segments = object.tags.iter().map(|segment| {
        let end = Bytes(segment.start.0 + segment.length.0);
        format!("{}:{}-{}", name(segment.tag), segment.start.0, end.0)
    });
    segments.collect::<Vec<_>>().join(",")
}

fn in_json(object: &Object) -> Value {
    json!({
        "name": object.name.as_str(),
        "size_bytes": object.size.0,
        "page_bytes": object.page_size.bytes().0,
        "scheduler": scheduler(object.scheduler),
        "types": types(object),
    })
}

fn list(client: &Client, in_json_form: bool) -> Outcome<()> {
    let objects = client.list().map_err(failed)?;
    let mut stdout = io::stdout().lock();
    if in_json_form {
        let objects: Vec<Value> = objects.iter().map(in_json).collect();
        serde_json::to_writer_pretty(&mut stdout, &objects)?;
        return Ok(writeln!(stdout)?);
    }
    let mut table = Table::new(1, &["NAME", "SIZE", "PAGE", "SCHEDULER", "TYPES"]);
    for object in &objects {
        table.row(vec![
            object.name.to_string(),
            object.size.to_string(),
            object.page_size.bytes().to_string(),
            scheduler(object.scheduler).to_owned(),
            types(object),
        ]);
    }
    Ok(table.write(&mut stdout, 0)?)
}

fn stat(known: Answer, in_json_form: bool) -> Outcome<()> {
    let Answer::Statistics {
        info,
        faults,
        kernels,
        pages,
        report,
    } = known
    else {
        return Err(failed(ClientError::Confused));
    };
    let mut stdout = io::stdout().lock();
    if in_json_form {
        let mut whole = in_json(&info);
        whole["faults"] = faults_in_json(faults);
        whole["open"] = kernels.len().into();
        whole["translation"] =
            json!({ "replaced": report.replaced(), "rounded": report.rounded() });
        whole["pages"] = pages.iter().map(page_in_json).collect();
        serde_json::to_writer_pretty(&mut stdout, &whole)?;
        return Ok(writeln!(stdout)?);
    }
    let Faults {
        read,
        write,
        unlock,
    } = faults;
    writeln!(
        stdout,
        "{}: {} in pages of {}, scheduler {}, open {} times",
        info.name,
        info.size,
        info.page_size.bytes(),
        scheduler(info.scheduler),
        kernels.len()
    )?;
    writeln!(
        stdout,
        "faults: {read} to read, {write} to write, {unlock} to write what was there to be read"
    )?;
    if *report != Report::new() {
        writeln!(stdout, "translation: {report}")?;
    }
    if pages.is_empty() {
        return Ok(());
    }
    let header = [
        "STATE", "PAGE", "OWNER", "READERS", "READ", "WRITE", "UNLOCK",
    ];
    let mut table = Table::new(1, &header);
    for page in &pages {
        table.row(vec![
            page.state.clone(),
            page.page.0.to_string(),
            page.owner
                .map_or_else(|| "-".into(), |owner| owner.0.to_string()),
            page.readers.to_string(),
            page.faults.read.to_string(),
            page.faults.write.to_string(),
            page.faults.unlock.to_string(),
        ]);
    }
    Ok(table.write(&mut stdout, 0)?)
}

fn faults_in_json(faults: Faults) -> Value {
    json!({ "read": faults.read, "write": faults.write, "unlock": faults.unlock })
}

fn page_in_json(page: &PageState) -> Value {
    json!({
        "page": page.page.0,
        "state": page.state,
        "owner": page.owner.map(|owner| owner.0),
        "readers": page.readers,
        "faults": faults_in_json(page.faults),
    })
}

/// The object of a name, if there is one.
fn find(client: &Client, name: &Name) -> Outcome<Option<Object>> {
    match client.statistics(name.clone(), None) {
        Ok(Answer::Statistics { info, .. }) => Ok(Some(info)),
        Ok(_) => Err(failed(ClientError::Confused)),
        Err(ClientError::Refused(Refusal {
            kind: FailureKind::NotFound,
            ..
        })) => Ok(None),
        Err(error) => Err(failed(error)),
    }
}
