//! `quire object`: makes, lists, shows, watches, copies and removes shared objects, and looks
//! at the stores in which servers keep them.

mod check;
mod copy;
mod interruption;
mod stat;
mod trace;

use std::io::{self, Write};

use quire_core::dsm::types::TypeTag;
use quire_core::units::Bytes;
use quire_dsm::client::{Client, ClientError, Options};
use quire_dsm::wire::control::{
    Answer, Failure as Refusal, FailureKind, MachineCode, Name, Object, Segment, TypeCode,
};
use serde_json::{Value, json};
use tracing::Level;

use crate::args::dsm::{CreateArgs, ObjectAction, ObjectArgs, ServerArgs, tags};
use crate::dsm::settings;
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
        ObjectAction::Stat(options) => stat::stat(&client, options),
        ObjectAction::Trace(options) => trace::trace(&client, options),
        ObjectAction::Rm { names, when_unused } => {
            names.iter().try_for_each(|name| match when_unused {
                true => client.discard(name.clone()).map_err(failed),
                false => client.remove(name.clone()).map_err(not_removed),
            })
        }
        ObjectAction::Grant { name, to, rights } => {
            let (name, to) = (name.clone(), to.clone());
            client.grant(name, to, *rights).map_err(failed)
        }
        ObjectAction::Cp { from, to, salvage } => copy::copy(&client, from, to, *salvage),
    }
}

fn connect(options: &ServerArgs) -> Outcome<Client> {
    Client::connect(reached(options)?).map_err(failed)
}

/// How a server is reached.
pub fn reached(options: &ServerArgs) -> Outcome<Options> {
    let (servers, name, security) = settings::reached(options)?;
    let mut wanted = Options::new(servers, name);
    wanted.security = security;
    Ok(wanted)
}

/// What a user is told.
pub fn failed(error: ClientError) -> Failure {
    match &error {
        ClientError::Unreachable {
            is_denied: true, ..
        } => Failure::system(format!(
            "{error}; let this user connect there, by the rights of the socket and of its directory"
        )),
        ClientError::Unreachable { .. } => Failure::system(format!(
            "{error}; start a server with `quire serve`, name another with --server, or \
             give it the certificate that it wants with --certificate"
        )),
        ClientError::Refused(Refusal { kind, .. }) => refused(*kind, &error),
        _ => Failure::system(error.to_string()),
    }
}

/// What a user is told where the server refuses, with the remedy.
fn refused(kind: FailureKind, error: &ClientError) -> Failure {
    match kind {
        FailureKind::NotFound => Failure::bad_usage(format!(
            "{error}; `quire object ls` shows those that there are"
        )),
        FailureKind::Exists => Failure::bad_usage(format!(
            "{error}; take another name, or remove it with `quire object rm`"
        )),
        FailureKind::Busy => Failure::system(format!(
            "{error}; `quire object stat` shows who has it open"
        )),
        FailureKind::Begun => Failure::bad_usage(format!(
            "{error}; `quire object create` makes it, `quire object rm` removes the name"
        )),
        FailureKind::Invalid => Failure::bad_usage(error.to_string()),
        _ => Failure::system(error.to_string()),
    }
}

/// What a user is told whose object stays.
fn not_removed(error: ClientError) -> Failure {
    let is_used =
        matches!(&error, ClientError::Refused(refusal) if refusal.kind == FailureKind::Busy);
    let failure = failed(error);
    match is_used {
        true => failure.and("`quire object rm --when-unused` removes the name at once"),
        false => failure,
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
        "scheduler": object.scheduler.name(),
        "types": types(object),
    })
}

fn list(client: &Client, in_json_form: bool) -> Outcome<()> {
    let objects = client.list().map_err(failed)?;
    let mut stdout = io::stdout().lock();
    if in_json_form {
        let listed = |object: &Object| {
            let mut listed = in_json(object);
            listed["removed"] = (!object.name.is_plain()).into();
            listed
        };
        let objects: Vec<Value> = objects.iter().map(listed).collect();
        serde_json::to_writer_pretty(&mut stdout, &objects)?;
        return Ok(writeln!(stdout)?);
    }
    let mut table = Table::new(1, &["NAME", "SIZE", "PAGE", "SCHEDULER", "TYPES"]);
    for object in &objects {
        table.row(vec![
            object.name.to_string(),
            object.size.to_string(),
            object.page_size.bytes().to_string(),
            object.scheduler.to_string(),
            types(object),
        ]);
    }
    Ok(table.write(&mut stdout, 0)?)
}

/// The object of a name, if there is one.
fn find(client: &Client, name: &Name) -> Outcome<Option<Object>> {
    match client.statistics(name.clone(), None) {
        Ok(Answer::Statistics { info, .. }) => Ok(Some(info)),
        Ok(_) => Err(failed(ClientError::Confused)),
        Err(ClientError::Refused(Refusal {
            kind: FailureKind::NotFound | FailureKind::Begun,
            ..
        })) => Ok(None),
        Err(error) => Err(failed(error)),
    }
}
