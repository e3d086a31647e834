//! The screen, drawn from what is known. Pure: it fills a buffer.
//!
//! From top to bottom: the machine, the processes, and of the chosen process
//! its frames, its shared objects, the regions and the picture of the chosen one. On a small screen what
//! matters least is left out.

mod frames;
mod machine;
mod objects;
mod picture;
mod tables;
mod window;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};

use super::app::{App, Mode};
use super::look::Look;

/// Draws everything, with the line of notices at the bottom and the windows.
pub fn draw(area: Rect, buffer: &mut Buffer, app: &App, look: Look) {
    let (body, bottom) = cut_bottom(area, 1);
    draw_body(body, buffer, app, look);
    draw_bottom(bottom, buffer, app, look);
    match app.mode {
        Mode::Policy(place) => window::policies(area, buffer, app, place, look),
        Mode::Help => window::help(area, buffer, look),
        _ => {}
    }
}

/// Draws what is known, without what only a user at a keyboard needs.
pub fn draw_body(area: Rect, buffer: &mut Buffer, app: &App, look: Look) {
    let regions = app.chosen().map_or(0, |row| row.stat.regions.len());
    let wanted = Wanted {
        processes: app.visible().len(),
        regions,
        frames: frames::is_shown(app),
        objects: objects::lines(app),
    };
    let plan = Plan::new(area.height, wanted, &app.mode);
    let mut rest = area;
    let mut next = |height: u16| {
        let (part, below) = cut_top(rest, height);
        rest = below;
        part
    };
    machine::title(next(plan.title), buffer, app);
    machine::memory(next(plan.memory), buffer, app, look);
    machine::free_blocks(next(plan.chart), buffer, app, look);
    tables::processes(next(plan.processes), buffer, app, look);
    machine::process(next(plan.process), buffer, app, look);
    frames::frames(next(plan.frames), buffer, app, look);
    objects::objects(next(plan.objects), buffer, app, look);
    tables::regions(next(plan.regions), buffer, app, look);
    picture::picture(next(plan.picture), buffer, app, look);
}

/// How many lines each part has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Plan {
    title: u16,
    memory: u16,
    chart: u16,
    processes: u16,
    process: u16,
    frames: u16,
    objects: u16,
    regions: u16,
    picture: u16,
}

/// What there is to show.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    processes: usize,
    regions: usize,
    /// Whether the chosen process has strategies for frames.
    frames: bool,
    /// How many lines its shared objects have.
    objects: u16,
}

/// Lines of a picture below which it is left out, with title and legend.
const SMALLEST_PICTURE: u16 = 3;

impl Plan {
    fn new(height: u16, wanted: Wanted, mode: &Mode) -> Plan {
        let mut plan = Plan {
            title: u16::from(height >= 3),
            memory: u16::from(height >= 6),
            chart: if height >= 20 { machine::CHART } else { 0 },
            ..Plan::default()
        };
        let rest = height - plan.title - plan.memory - plan.chart;
        let lines = |rows: usize| u16::try_from(rows + 1).unwrap_or(u16::MAX);
        if rest < 9 {
            match mode {
                Mode::Regions => plan.regions = rest,
                _ => plan.processes = rest,
            }
            return plan;
        }
        plan.processes = lines(wanted.processes).min((rest / 3).max(4));
        plan.process = 1;
        plan.frames = u16::from(wanted.frames);
        let rest = rest - plan.processes - plan.process - plan.frames;
        plan.objects = wanted.objects.min(rest / 2);
        let rest = rest - plan.objects;
        plan.regions = lines(wanted.regions).min((rest / 3).max(2));
        plan.picture = rest - plan.regions;
        if plan.picture < SMALLEST_PICTURE {
            plan.regions += plan.picture;
            plan.picture = 0;
        }
        plan
    }
}

fn draw_bottom(area: Rect, buffer: &mut Buffer, app: &App, look: Look) {
    let line = match (&app.mode, &app.notice) {
        (Mode::Filter, _) => Line::from(format!("Show commands that hold: {}_", app.filter)),
        (_, Some(notice)) if notice.is_error => Line::styled(notice.text.clone(), look.alarm()),
        (_, Some(notice)) => Line::from(notice.text.clone()),
        _ => hints(&app.mode),
    };
    put(area, buffer, 0, &line);
}

fn hints(mode: &Mode) -> Line<'static> {
    let go = match mode {
        Mode::Regions => ("Enter", "processes"),
        _ => ("Enter", "regions"),
    };
    let keys = [
        ("h", "help"),
        ("q", "quit"),
        go,
        ("p", "policy"),
        ("a", "align"),
        ("s", "sort"),
        ("/", "filter"),
        ("Space", "pause"),
    ];
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let spans = keys.into_iter().flat_map(|(key, does)| {
        [
            Span::styled(key, bold),
            Span::raw(" "),
            Span::raw(does),
            Span::raw("  "),
        ]
    });
    Line::from_iter(spans)
}

/// Puts a line of text into a line of an area, as far as there is room.
fn put(area: Rect, buffer: &mut Buffer, row: u16, line: &Line<'_>) {
    if row < area.height && area.width > 0 {
        buffer.set_line(area.x, area.y + row, line, area.width);
    }
}

fn cut_top(area: Rect, height: u16) -> (Rect, Rect) {
    let height = height.min(area.height);
    let top = Rect { height, ..area };
    let rest = Rect {
        y: area.y + height,
        height: area.height - height,
        ..area
    };
    (top, rest)
}

fn cut_bottom(area: Rect, height: u16) -> (Rect, Rect) {
    cut_top(area, area.height.saturating_sub(height))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{app, process, shared, with_strategies};
    use super::*;

    const PLAIN: Look = Look {
        colour: false,
        unicode: true,
    };

    fn screen(app: &App, width: u16, height: u16, look: Look) -> Vec<String> {
        let area = Rect::new(0, 0, width, height);
        let mut buffer = Buffer::empty(area);
        draw(area, &mut buffer, app, look);
        super::super::once::lines(&buffer)
    }

    fn two() -> App {
        app([process(1001, "redis"), process(1002, "python3")])
    }

    fn find<'a>(lines: &'a [String], word: &str) -> &'a str {
        let line = lines.iter().find(|line| line.contains(word));
        line.unwrap_or_else(|| panic!("no {word} in\n{}", lines.join("\n")))
    }

    #[test]
    fn everything_is_on_a_usual_screen() {
        let lines = screen(&two(), 80, 24, PLAIN);
        assert!(
            lines[0].starts_with("quire top: 2 processes"),
            "{}",
            lines[0]
        );
        let memory = find(&lines, "Memory");
        assert!(memory.contains("18G available of 23G"), "{memory}");
        assert!(memory.contains("some 1.25 %"), "{memory}");
        assert!(find(&lines, "4M").contains("512K"));
        assert!(find(&lines, "4017").contains("32640"));
        assert!(find(&lines, "> 1001 ").contains("reserve"));
        assert!(find(&lines, "python3").contains("1002"));
        assert!(find(&lines, "Process 1001 (redis)").contains("superpages"));
        let picture = find(&lines, "Picture of 000080000000-000083c00000");
        assert!(
            picture.contains("30 extents, one in each cell"),
            "{picture}"
        );
        let cells = "█".repeat(10) + &"▄".repeat(10) + &"·".repeat(10);
        assert_eq!(find(&lines, &cells).trim(), cells);
        assert!(find(&lines, "█ promoted").contains("▄ reserved"));
        assert!(lines[23].starts_with("h help"));
    }

    #[test]
    fn frames_are_shown_where_strategies_give_them() {
        let lines = screen(&app([with_strategies(7, "solver")]), 100, 24, PLAIN);
        assert_eq!(
            find(&lines, "Frames"),
            "Frames: - pages/s, 2M in stock; heap=colour:hashed 40 chosen, 2 other, 0 left"
        );
        find(&lines, "Picture of");
        let without = screen(&two(), 100, 24, PLAIN);
        assert!(without.iter().all(|line| !line.contains("Frames")));
    }

    #[test]
    fn objects_of_the_chosen_process_are_shown() {
        let mut app = two();
        app.objects = vec![shared(1001, "grid"), shared(1002, "other")];
        let lines = screen(&app, 140, 24, PLAIN);
        assert_eq!(
            find(&lines, "Object"),
            "Object grid at unix:/run/q: open, 12 pages used: 3 to write here, 4 to read; \
             open 2 times; faults: 20 to read, 31 to write, 5 unlock"
        );
        assert!(lines.iter().all(|line| !line.contains("other")));
        find(&lines, "Picture of");
    }

    #[test]
    fn a_terminal_without_unicode_gets_ascii() {
        let look = Look {
            unicode: false,
            ..PLAIN
        };
        let lines = screen(&two(), 80, 24, look);
        assert!(lines.iter().all(|line| line.is_ascii()), "{lines:?}");
        assert_eq!(
            find(&lines, "4444444444").trim(),
            "##########4444444444.........."
        );
    }

    #[test]
    fn no_screen_is_too_small() {
        let mut app = app([process(1001, "redis"), with_strategies(7, "solver")]);
        app.objects = vec![shared(7, "grid"), shared(7, "other")];
        app.complain("something went wrong");
        for mode in [
            Mode::Processes,
            Mode::Regions,
            Mode::Policy(1),
            Mode::Help,
            Mode::Filter,
        ] {
            app.mode = mode;
            for (width, height) in (0..40).flat_map(|w| (0..40).map(move |h| (w, h))) {
                screen(&app, width, height, PLAIN);
            }
            screen(&app, 500, 200, PLAIN);
        }
    }

    #[test]
    fn a_narrow_table_keeps_the_column_that_sorts() {
        let mut app = two();
        (0..4).for_each(|_| app.shift_sort(1));
        let lines = screen(&app, 40, 24, PLAIN);
        let head = find(&lines, "PID");
        assert!(
            head.contains("FAIL/s▼") && !head.contains("MAPPED"),
            "{head}"
        );
    }

    #[test]
    fn a_small_picture_is_folded() {
        let lines = screen(&two(), 20, 24, PLAIN);
        assert!(find(&lines, "Picture").starts_with("Picture"));
        let full: usize = lines.iter().map(|l| l.matches('█').count()).sum();
        assert!((1..=30).contains(&full));
    }

    #[test]
    fn colours_only_where_there_are_some() {
        let area = Rect::new(0, 0, 80, 24);
        let coloured = |colour| {
            let mut buffer = Buffer::empty(area);
            draw(area, &mut buffer, &two(), Look { colour, ..PLAIN });
            let mut cells = buffer.content().iter();
            cells.any(|cell| cell.fg != ratatui::style::Color::Reset)
        };
        assert!(coloured(true) && !coloured(false));
    }

    #[test]
    fn the_windows_show_the_choice() {
        let mut app = two();
        app.open_policies();
        let lines = screen(&app, 80, 24, PLAIN);
        assert!(find(&lines, "Policy of 1001 (redis)").contains('─'));
        assert!(find(&lines, "3 reserve").contains('>'));
        find(&lines, "5 static");
        app.mode = Mode::Help;
        find(
            &screen(&app, 80, 24, PLAIN),
            "choose the policy of the process",
        );
    }

    #[test]
    fn nobody_is_there() {
        let lines = screen(&app([]), 80, 24, PLAIN);
        find(
            &lines,
            "No managed process is known (from 64 MiB on). Try `quire run -- PROGRAM`.",
        );
        let mut app = two();
        app.set_filter("zzz".to_owned());
        find(&screen(&app, 80, 24, PLAIN), "No command holds `zzz`");
    }

    #[test]
    fn names_cannot_drive_the_terminal() {
        let lines = screen(&app([process(1, "\x1b[2Jx")]), 80, 24, PLAIN);
        find(&lines, "?[2Jx");
    }
}
