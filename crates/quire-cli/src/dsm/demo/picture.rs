//! Who had which page when, as characters and as a drawing.
//!
//! The characters alone say everything; colours make it easier to see. The file needs
//! nothing else, and is light or dark as the reader's system is.

use std::fmt::Write;
use std::path::Path;

use quire_lab::figures::svg::{Svg, WIDTH, colour, escape};
use quire_lab::report::html::STYLE;

use super::ownership::{self, Cell, Grid, Held, Ownership};
use crate::failure::{Failure, Outcome};

/// What stands below the table.
pub const CAPTION: &str = "medians, and how many times faster than on one node; the paper's are of IBM RTs on a token \
     ring (paper 003, Table 3)";
/// What the characters mean.
pub const LEGEND: &str = "\
A B C ...  node 1, 2, 3 ... could write to the page, alone all the while
a b c ...  it could for the longest part of the while, and others before or after it
.          one or several nodes had it to be read";

/// Rows and columns on a terminal.
const CHARACTERS: (usize, usize) = (12, 64);
/// Rows and columns of a drawing.
const CELLS: (usize, usize) = (48, 160);
/// Where the cells of a drawing begin, and their height.
const LEFT: f64 = 64.0;
const TOP: f64 = 8.0;
const TALL: f64 = 4.0;
/// The least height of a row where there are few.
const TALLEST: f64 = 14.0;

/// What drawings need beside the style of reports: what is read can be told from what nobody
/// has, and cells have no gaps between them.
const CELL_STYLE: &str = ".shade{fill:var(--edge)}svg rect{shape-rendering:crispEdges}";

/// A program that was watched.
#[derive(Clone, Debug)]
pub struct Drawn {
    /// What it is called.
    pub name: String,
    /// On how many nodes it ran.
    pub nodes: usize,
    /// What was seen.
    pub ownership: Ownership,
}

/// What kind of file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A page, with the table.
    Html,
    /// A drawing.
    Svg,
}

impl Form {
    /// The kind of a file, by the end of its name.
    pub fn of(path: &Path) -> Outcome<Form> {
        match path.extension().and_then(|end| end.to_str()) {
            Some("html") => Ok(Form::Html),
            Some("svg") => Ok(Form::Svg),
            _ => Err(Failure::bad_usage(format!(
                "--picture {}: name a file that ends in .html or .svg",
                path.display()
            ))),
        }
    }
}

/// The character of a cell.
fn glyph(cell: Cell) -> char {
    match cell.held {
        Held::Nobody => ' ',
        Held::Read => '.',
        Held::Written(node) => {
            let begin = if cell.is_shared { b'a' } else { b'A' };
            // Behind the last letter is only a sign that there are more nodes than letters.
            u8::try_from(node)
                .ok()
                .filter(|node| *node < 26)
                .map_or('#', |node| char::from(begin + node))
        }
    }
}

/// A line that says what the picture shows.
fn title(drawn: &Drawn) -> String {
    let ownership = &drawn.ownership;
    let mut title = format!(
        "{} on {} nodes: {} pages over {:.3} s; the right to write went to another node {} times",
        drawn.name,
        drawn.nodes,
        ownership.pages(),
        ownership.seconds(),
        ownership.moves()
    );
    if ownership.lost > 0 {
        let _ = write!(title, "; {} messages were missed", ownership.lost);
    }
    title
}

fn range((first, last): (u64, u64)) -> String {
    match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    }
}

/// The picture for a terminal.
pub fn characters(drawn: &Drawn, in_colour: bool) -> String {
    let grid = drawn.ownership.grid(CHARACTERS.0, CHARACTERS.1);
    let mut text = format!("{}\n", title(drawn));
    let labels: Vec<String> = grid.rows.iter().map(|(pages, _)| range(*pages)).collect();
    let width = labels.iter().map(String::len).max().unwrap_or(0).max(5);
    let _ = writeln!(text, "{:>width$}  time ->", "pages");
    for (label, (_, cells)) in labels.iter().zip(&grid.rows) {
        let _ = write!(text, "{label:>width$} |");
        for cell in cells {
            push(&mut text, *cell, in_colour);
        }
        text.push_str("|\n");
    }
    text
}

fn push(text: &mut String, cell: Cell, in_colour: bool) {
    match cell.held {
        Held::Written(node) if in_colour => {
            // The terminal's own colours, from red on; black and white are left out.
            let _ = write!(text, "\x1b[{}m{}\x1b[0m", 31 + node % 6, glyph(cell));
        }
        _ => text.push(glyph(cell)),
    }
}

/// A drawing, and how high it is.
fn drawing(drawn: &Drawn, number: usize) -> (String, f64) {
    let grid = drawn.ownership.grid(CELLS.0, CELLS.1);
    let rows = grid.rows.len() as f64;
    let tall = (TALL * CELLS.0 as f64 / rows.max(1.0)).clamp(TALL, TALLEST);
    let height = TOP + tall * rows + 20.0;
    let mut svg = Svg::new(height, &title(drawn), LEGEND);
    draw_cells(&mut svg, &grid, tall, drawn.nodes);
    let bottom = TOP + tall * rows + 14.0;
    svg.text((LEFT, bottom), "start", "0 s");
    let end = format!("{:.3} s", drawn.ownership.seconds());
    svg.text((WIDTH - 4.0, bottom), "end", &end);
    (svg.finish(&format!("p{number}")), height)
}

fn draw_cells(svg: &mut Svg, grid: &Grid, tall: f64, nodes: usize) {
    let wide = (WIDTH - 4.0 - LEFT) / CELLS.1 as f64;
    let mut named: f64 = f64::NEG_INFINITY;
    for (row, (pages, cells)) in grid.rows.iter().enumerate() {
        let y = TOP + tall * row as f64;
        if y - named >= 14.0 {
            svg.text((LEFT - 4.0, y + tall.max(10.0)), "end", &range(*pages));
            named = y;
        }
        let mut column = 0;
        for run in cells.chunk_by(|a, b| a == b) {
            let (x, length) = (LEFT + wide * column as f64, wide * run.len() as f64);
            draw_run(svg, (x, y), (length, tall), run[0], (*pages, nodes));
            column += run.len();
        }
    }
}

fn draw_run(
    svg: &mut Svg,
    at: (f64, f64),
    size: (f64, f64),
    cell: Cell,
    (pages, nodes): ((u64, u64), usize),
) {
    match cell.held {
        Held::Nobody => {}
        Held::Read => svg.shade(at, size),
        Held::Written(node) => {
            let more = match cell.is_shared && nodes > 1 {
                true => " for the longest part, others too",
                false => "",
            };
            let tip = format!("pages {}: {}{more}", range(pages), ownership::name(node));
            svg.bar(at, size, node, &tip);
        }
    }
}

/// The whole file; the first row of the table is its header.
pub fn page(form: Form, table: &[Vec<String>], place: &str, drawn: &[Drawn]) -> String {
    match form {
        Form::Html => html(table, place, drawn),
        Form::Svg => svg(drawn),
    }
}

fn key(nodes: usize) -> String {
    let one = |node| {
        format!(
            "<span class=\"key\"><i style=\"background:{}\"></i>{} writes</span>",
            colour(node),
            ownership::name(node)
        )
    };
    let read = "<span class=\"key\"><i style=\"background:var(--edge)\">\
                </i>read</span>";
    (0..nodes).map(one).collect::<String>() + read
}

fn html(table: &[Vec<String>], place: &str, drawn: &[Drawn]) -> String {
    let heading = "Programs over shared memory";
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\"><link rel=\"icon\" href=\"data:,\">\
         <title>{heading}</title><style>{STYLE}{CELL_STYLE}</style></head><body>\n\
         <h1>{heading}</h1>\n<div class=\"scroll\" tabindex=\"0\"><table>"
    );
    for (number, row) in table.iter().enumerate() {
        let tag = if number == 0 { "th" } else { "td" };
        let cell = |cell: &String| format!("<{tag}>{}</{tag}>", escape(cell));
        let cells: String = row.iter().map(cell).collect();
        let _ = writeln!(page, "<tr>{cells}</tr>");
    }
    let _ = write!(
        page,
        "</table></div>\n<p>{}; {}</p>\n",
        escape(CAPTION),
        escape(place)
    );
    page.push_str("<h2>Who had which page when</h2>\n<p>Pages from top to bottom, time from left to right.</p>\n");
    for (number, drawn) in drawn.iter().enumerate() {
        let (svg, _) = drawing(drawn, number);
        let (title, key) = (escape(&title(drawn)), key(drawn.nodes));
        let _ = writeln!(
            page,
            "<figure>{svg}<figcaption>{title}<br>{key}</figcaption></figure>"
        );
    }
    page.push_str("</body></html>\n");
    page
}

/// All drawings below each other, each with its title.
fn svg(drawn: &[Drawn]) -> String {
    let mut body = String::new();
    let mut y = 0.0;
    for (number, drawn) in drawn.iter().enumerate() {
        let title = format!("{} on {} nodes", drawn.name, drawn.nodes);
        let _ = write!(
            body,
            "<text x=\"4\" y=\"{:.0}\">{}</text>",
            y + 16.0,
            escape(&title)
        );
        for node in 0..drawn.nodes.min(8) {
            let x = WIDTH - 62.0 * (drawn.nodes.min(8) - node) as f64;
            let (fill, name) = (colour(node), ownership::name(node));
            let _ = write!(
                body,
                "<rect x=\"{x:.0}\" y=\"{:.0}\" width=\"9\" height=\"9\" fill=\"{fill}\"/>\
                 <text x=\"{:.0}\" y=\"{:.0}\">{name}</text>",
                y + 8.0,
                x + 12.0,
                y + 16.0
            );
        }
        let (inner, height) = drawing(drawn, number);
        let placed = format!(
            "<svg y=\"{:.0}\" width=\"{WIDTH:.0}\" height=\"{height:.0}\" ",
            y + 22.0
        );
        body.push_str(&inner.replacen("<svg ", &placed, 1));
        y += height + 30.0;
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH:.0} {y:.0}\"><style>{STYLE}{CELL_STYLE}</style>\
         <rect width=\"100%\" height=\"100%\" fill=\"var(--bg)\"/>{body}</svg>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_tell_without_colours() {
        let glyphs = [
            (Held::Nobody, false, ' '),
            (Held::Read, false, '.'),
            (Held::Written(0), false, 'A'),
            (Held::Written(2), true, 'c'),
            (Held::Written(25), false, 'Z'),
            (Held::Written(26), false, '#'),
            (Held::Written(1000), true, '#'),
        ];
        for (held, is_shared, expected) in glyphs {
            assert_eq!(glyph(Cell { held, is_shared }), expected);
        }
    }

    #[test]
    fn the_form_is_told_by_the_end_of_the_name() {
        assert_eq!(Form::of(Path::new("a.html")).ok(), Some(Form::Html));
        assert_eq!(Form::of(Path::new("a.svg")).ok(), Some(Form::Svg));
        let refused = Form::of(Path::new("a.png")).expect_err("no picture of this kind");
        assert!(refused.to_string().contains(".svg"));
    }
}
