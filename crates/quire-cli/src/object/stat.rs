//! `quire object stat`: faults, readers and owners of an object and of its pages.

use std::io::{self, Write};

use quire_core::dsm::message::{Client as Holder, KernelId, PageNumber, Pages};
use quire_core::dsm::types::Report;
use quire_dsm::client::{Client, ClientError};
use quire_dsm::wire::control::{Answer, Faults, Inside, Known, Messages, Object, PageState};
use serde_json::{Value, json};

use super::{failed, in_json, types};
use crate::args::dsm::StatArgs;
use crate::failure::{Failure, Outcome};
use crate::table::Table;

/// Pages that are asked for at once.
const AT_ONCE: u64 = 512;
/// Pages that are shown at most.
const MOST: u64 = 1 << 20;

/// Shows what is known of an object.
pub fn stat(client: &Client, options: &StatArgs) -> Outcome<()> {
    let known = match options.pages {
        Some(pages) => some_pages(client, options, pages)?,
        None => answered(client.hottest(options.name.clone(), options.top))?,
    };
    match options.json {
        true => print_json(&known),
        false => print(&known, options),
    }
}

/// What is known: the object, whose it is, and what happens in it.
struct About {
    object: Object,
    owner: String,
    is_discarded: bool,
    inside: Option<Inside>,
}

fn answered(answer: Result<Answer, ClientError>) -> Outcome<About> {
    match answer.map_err(failed)? {
        Answer::Statistics {
            info,
            owner,
            is_discarded,
            inside,
            ..
        } => Ok(About {
            object: info,
            owner,
            is_discarded,
            inside,
        }),
        _ => Err(failed(ClientError::Confused)),
    }
}

/// Asks for pages, as many at a time as an answer can hold.
fn some_pages(client: &Client, options: &StatArgs, pages: Pages) -> Outcome<About> {
    let mut about = answered(client.statistics(options.name.clone(), None))?;
    let size = about.object.page_size.bytes().0;
    let (first, end) = (pages.first.0, about.object.size.0.div_ceil(size));
    if first >= end {
        let name = &options.name;
        let last = end.saturating_sub(1);
        return Err(Failure::bad_usage(format!(
            "--pages: the last page of {name} is {last}"
        )));
    }
    let end = end.min(first + u64::from(pages.count)).min(first + MOST);
    let Some(inside) = &mut about.inside else {
        return Ok(about);
    };
    let mut at = first;
    while at < end {
        let count = (end - at).min(AT_ONCE);
        let part = Pages {
            first: PageNumber(at),
            // At most `AT_ONCE`.
            count: count as u32,
        };
        let more = answered(client.statistics(options.name.clone(), Some(part)))?;
        inside
            .pages
            .extend(more.inside.into_iter().flat_map(|inside| inside.pages));
        at += count;
    }
    Ok(about)
}

/// The name of who has a page, where it is known.
fn holder(holder: Option<Holder>, known: &[Known]) -> String {
    match holder {
        None => "-".to_owned(),
        Some(Holder::Server(server)) => format!("server {}", server.0),
        Some(Holder::Kernel(kernel)) => named(kernel, known),
    }
}

/// Who a kernel is: its name where it is known, with its number where several have that.
pub fn named(kernel: KernelId, known: &[Known]) -> String {
    let Some(name) = called(kernel, known) else {
        return format!("kernel {}", kernel.0);
    };
    let is_same = |other: &Known| other.kernel != kernel && other.name == name;
    match known.iter().any(is_same) {
        true => format!("{name} #{}", kernel.0),
        false => name,
    }
}

/// What a kernel is called, where it is known. One with several names is the copy that the
/// programs of these names share: there is one, so that it needs no names.
pub fn called(kernel: KernelId, known: &[Known]) -> Option<String> {
    let names = names(kernel, known);
    match names[..] {
        [] => None,
        [name] => Some(name.to_owned()),
        _ => Some(format!("{} programs that share a copy", names.len())),
    }
}

fn names(kernel: KernelId, known: &[Known]) -> Vec<&str> {
    let known = known.iter().filter(|known| known.kernel == kernel);
    known.map(|known| known.name.as_str()).collect()
}

/// Who a kernel is, and all of the programs that share a copy.
fn in_full(kernel: KernelId, known: &[Known]) -> String {
    let short = named(kernel, known);
    match &names(kernel, known)[..] {
        [] | [_] => short,
        several => format!("{short}: {}", several.join(", ")),
    }
}

fn print(about: &About, options: &StatArgs) -> Outcome<()> {
    let mut stdout = io::stdout().lock();
    let object = &about.object;
    writeln!(
        stdout,
        "{}: {} in pages of {}, scheduler {}, made by {}",
        object.name,
        object.size,
        object.page_size.bytes(),
        object.scheduler,
        about.owner
    )?;
    if about.is_discarded {
        writeln!(stdout, "removed: it goes when nobody has it open")?;
    }
    if !object.tags.is_empty() {
        writeln!(stdout, "types: {}", types(object))?;
    }
    let Some(inside) = &about.inside else {
        return Ok(writeln!(
            stdout,
            "what happens in it is shown to those who may read it; {} can grant that with \
             `quire object grant`",
            about.owner
        )?);
    };
    let all = object.size.0.div_ceil(object.page_size.bytes().0);
    let Faults {
        read,
        write,
        unlock,
    } = inside.faults;
    writeln!(
        stdout,
        "faults: {read} to read, {write} to write, {unlock} to write what was there to be read; \
         {} of {all} pages used",
        inside.touched
    )?;
    if inside.lost > 0 {
        let lost = inside.lost;
        writeln!(
            stdout,
            "lost: {lost} pages, which programs could write to that are gone and gave nothing back"
        )?;
    }
    print_messages(&mut stdout, inside.messages)?;
    if *inside.report != Report::new() {
        writeln!(stdout, "translation: {}", inside.report)?;
    }
    print_open(&mut stdout, inside)?;
    print_pages(&mut stdout, inside, options)
}

fn print_messages(out: &mut impl Write, messages: Messages) -> io::Result<()> {
    let Messages {
        from_kernels,
        to_kernels,
        from_servers,
        to_servers,
        ..
    } = messages;
    write!(
        out,
        "messages of this server: {from_kernels} from nodes, {to_kernels} to them"
    )?;
    if from_servers + to_servers > 0 {
        write!(
            out,
            ", {from_servers} from other servers, {to_servers} to them"
        )?;
    }
    writeln!(out)
}

fn print_open(out: &mut impl Write, inside: &Inside) -> io::Result<()> {
    if inside.open == 0 {
        return writeln!(out, "open: nowhere");
    }
    let more = inside.open.saturating_sub(inside.kernels.len() as u64);
    let mut kernels: Vec<KernelId> = inside.kernels.iter().map(|one| one.kernel).collect();
    kernels.dedup();
    let names = kernels
        .iter()
        .map(|kernel| in_full(*kernel, &inside.kernels));
    let names: Vec<String> = names.collect();
    let more = match more {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    writeln!(out, "open: {}{more}", names.join(", "))
}

fn print_pages(out: &mut impl Write, inside: &Inside, options: &StatArgs) -> Outcome<()> {
    if inside.pages.is_empty() {
        if options.pages.is_some() {
            writeln!(out, "\nnobody has asked for any of these pages")?;
        }
        return Ok(());
    }
    let header = [
        "STATE",
        "OWNER",
        "PAGE",
        "READERS",
        "WAITING",
        "READ",
        "WRITE",
        "UNLOCK",
        "TAKEN BACK",
    ];
    let mut table = Table::new(2, &header);
    for page in &inside.pages {
        table.row(vec![
            page.state.clone(),
            holder(page.owner, &inside.kernels),
            page.page.0.to_string(),
            page.readers.to_string(),
            page.waiting.to_string(),
            page.faults.read.to_string(),
            page.faults.write.to_string(),
            page.faults.unlock.to_string(),
            page.descheduled.to_string(),
        ]);
    }
    writeln!(out)?;
    table.write(out, 0)?;
    let shown = inside.pages.len() as u64;
    if options.pages.is_none() && shown < inside.touched {
        writeln!(
            out,
            "the {shown} pages with the most faults of {}; --top or --pages shows more",
            inside.touched
        )?;
    }
    Ok(())
}

fn print_json(about: &About) -> Outcome<()> {
    let mut whole = in_json(&about.object);
    whole["owner"] = about.owner.as_str().into();
    whole["removed"] = about.is_discarded.into();
    whole["may_read"] = about.inside.is_some().into();
    if let Some(inside) = &about.inside {
        whole["faults"] = faults(inside.faults);
        whole["messages"] = messages(inside.messages);
        whole["pages_used"] = inside.touched.into();
        whole["open"] = inside.open.into();
        let report = &inside.report;
        whole["translation"] =
            json!({ "replaced": report.replaced(), "rounded": report.rounded() });
        let kernels = inside.kernels.iter();
        whole["kernels"] = kernels
            .map(|known| json!({ "kernel": known.kernel.0, "name": known.name }))
            .collect();
        let pages = inside.pages.iter();
        whole["pages"] = pages
            .map(|page| page_in_json(page, &inside.kernels))
            .collect();
    }
    let mut stdout = io::stdout().lock();
    serde_json::to_writer_pretty(&mut stdout, &whole)?;
    Ok(writeln!(stdout)?)
}

fn messages(messages: Messages) -> Value {
    json!({
        "from_kernels": messages.from_kernels,
        "completions": messages.completions,
        "to_kernels": messages.to_kernels,
        "from_servers": messages.from_servers,
        "to_servers": messages.to_servers,
        "faults_of_servers": messages.faults_of_servers,
    })
}

fn faults(faults: Faults) -> Value {
    json!({ "read": faults.read, "write": faults.write, "unlock": faults.unlock })
}

fn page_in_json(page: &PageState, known: &[Known]) -> Value {
    let kernel = match page.owner {
        Some(Holder::Kernel(kernel)) => Some(kernel.0),
        _ => None,
    };
    json!({
        "page": page.page.0,
        "state": page.state,
        "owner": page.owner.map(|owner| holder(Some(owner), known)),
        "owner_kernel": kernel,
        "readers": page.readers,
        "waiting": page.waiting,
        "taken_back": page.descheduled,
        "faults": faults(page.faults),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_of_one_name_are_told_apart() {
        let known = |kernel, name: &str| Known {
            kernel: KernelId(kernel),
            name: name.into(),
        };
        let all = [known(1, "a"), known(2, "b"), known(3, "a")];
        let names = [1, 2, 3, 4].map(|kernel| named(KernelId(kernel), &all));
        assert_eq!(names, ["a #1", "b", "a #3", "kernel 4"]);
        let all = [known(1, "a"), known(2, "b"), known(2, "c")];
        let names = [1, 2].map(|kernel| named(KernelId(kernel), &all));
        assert_eq!(names, ["a", "2 programs that share a copy"]);
        let names = [1, 2].map(|kernel| in_full(KernelId(kernel), &all));
        assert_eq!(names, ["a", "2 programs that share a copy: b, c"]);
    }
}
