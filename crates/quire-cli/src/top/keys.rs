//! What the keys do.

use quire_core::config::Policy;
use quire_core::control::Change;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::app::{Action, App, Mode};

/// The keys, for the help window.
pub const HELP: [(&str, &str); 12] = [
    ("Up Down j k", "choose a process, or a region of it"),
    ("PgUp PgDn Home End", "the same, in large steps"),
    ("Enter Tab", "go to the regions of the process, and back"),
    ("< > s S", "choose the column to sort by"),
    ("r", "reverse the order"),
    ("p", "choose the policy of the process"),
    ("a", "switch the alignment of its mappings on or off"),
    ("/", "show only the commands that hold a text"),
    ("Space", "pause, go on"),
    ("+ -", "longer or shorter intervals"),
    ("h ?", "this help"),
    ("q Esc Ctrl-C", "quit"),
];

/// Steps of the page keys.
const PAGE: isize = 10;

/// Does what a key asks for, and says what is left to be done outside.
pub fn press(app: &mut App, key: KeyEvent) -> Action {
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return match key.code {
            KeyCode::Char('c') => Action::Quit,
            KeyCode::Char('z') => Action::Suspend,
            KeyCode::Char('l') => Action::Look,
            _ => Action::None,
        };
    }
    app.notice = None;
    match app.mode.clone() {
        Mode::Filter => type_filter(app, key.code),
        Mode::Policy(place) => choose_policy(app, place, key.code),
        Mode::Help => {
            app.mode = Mode::Processes;
            Action::None
        }
        Mode::Processes | Mode::Regions => command(app, key.code),
    }
}

fn command(app: &mut App, code: KeyCode) -> Action {
    match code {
        KeyCode::Char('q') => return Action::Quit,
        KeyCode::Esc if app.mode == Mode::Regions => app.switch_table(),
        KeyCode::Esc => return Action::Quit,
        KeyCode::Up | KeyCode::Char('k') => app.go(-1),
        KeyCode::Down | KeyCode::Char('j') => app.go(1),
        KeyCode::PageUp => app.go(-PAGE),
        KeyCode::PageDown => app.go(PAGE),
        KeyCode::Home => app.go(isize::MIN),
        KeyCode::End => app.go(isize::MAX),
        KeyCode::Enter | KeyCode::Tab => app.switch_table(),
        KeyCode::Char('>' | 's') | KeyCode::Right => app.shift_sort(1),
        KeyCode::Char('<' | 'S') | KeyCode::Left => app.shift_sort(-1),
        KeyCode::Char('r') => app.reverse(),
        KeyCode::Char('p') => app.open_policies(),
        KeyCode::Char('a') => {
            return app.ask(|stat| Change {
                align: Some(!stat.align),
                ..Change::default()
            });
        }
        KeyCode::Char('/') => app.mode = Mode::Filter,
        KeyCode::Char('h' | '?') => app.mode = Mode::Help,
        KeyCode::Char('+') => app.change_interval(true),
        KeyCode::Char('-') => app.change_interval(false),
        KeyCode::Char(' ') => {
            app.paused = !app.paused;
            return if app.paused {
                Action::None
            } else {
                Action::Look
            };
        }
        _ => {}
    }
    Action::None
}

fn type_filter(app: &mut App, code: KeyCode) -> Action {
    let mut filter = app.filter.clone();
    match code {
        KeyCode::Enter => app.mode = Mode::Processes,
        KeyCode::Esc => {
            filter.clear();
            app.mode = Mode::Processes;
        }
        KeyCode::Backspace => {
            filter.pop();
        }
        KeyCode::Char(c) => filter.push(c),
        _ => {}
    }
    app.set_filter(filter);
    Action::None
}

fn choose_policy(app: &mut App, place: usize, code: KeyCode) -> Action {
    let last = Policy::ALL.len() - 1;
    let chosen = match code {
        KeyCode::Up | KeyCode::Char('k') => {
            app.mode = Mode::Policy(place.checked_sub(1).unwrap_or(last));
            return Action::None;
        }
        KeyCode::Down | KeyCode::Char('j') => {
            app.mode = Mode::Policy(if place == last { 0 } else { place + 1 });
            return Action::None;
        }
        KeyCode::Enter => Policy::ALL.get(place),
        KeyCode::Char(digit @ '1'..='9') => Policy::ALL.get(digit as usize - '1' as usize),
        KeyCode::Esc | KeyCode::Char('q') => None,
        _ => return Action::None,
    };
    app.mode = Mode::Processes;
    match chosen {
        Some(policy) => app.ask(|_| Change {
            policy: Some(*policy),
            ..Change::default()
        }),
        None => Action::None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::app::ProcessKey;
    use super::super::testing::{app, process};
    use super::*;

    fn two() -> App {
        app([process(1, "one"), process(2, "two")])
    }

    /// Presses keys one after the other; says what the last one did.
    fn keys(app: &mut App, text: &str) -> Action {
        let code = |c| match c {
            '\n' => KeyCode::Enter,
            '\x1b' => KeyCode::Esc,
            '\x08' => KeyCode::Backspace,
            c => KeyCode::Char(c),
        };
        let actions = text.chars().map(|c| press(app, code(c).into()));
        actions.last().unwrap_or(Action::None)
    }

    #[test]
    fn quitting() {
        for quit in ["q", "\x1b", "\n\x1b\x1b"] {
            assert_eq!(keys(&mut two(), quit), Action::Quit, "{quit:?}");
        }
        for stay in ["/q", "\n\x1b", "pq", "p\x1b", "h\x1b", "/a\x1b"] {
            assert_eq!(keys(&mut two(), stay), Action::None, "{stay:?}");
        }
        for mode in ["", "/", "p", "h", "\n"] {
            let mut app = two();
            keys(&mut app, mode);
            let key = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
            assert_eq!(press(&mut app, key), Action::Quit);
        }
    }

    #[test]
    fn changes_are_asked_of_the_chosen_process() {
        let key = ProcessKey {
            pid: 2,
            start_time: 2,
        };
        let policy = |policy| {
            let policy = Some(policy);
            Change {
                policy,
                ..Change::default()
            }
        };
        let align = Change {
            align: Some(true),
            ..Change::default()
        };
        let mut app = two();
        assert_eq!(keys(&mut app, "ja"), Action::Ask(key, align));
        // The window opens at the present policy, `reserve`.
        assert_eq!(
            keys(&mut app, "pj\n"),
            Action::Ask(key, policy(Policy::Adaptive))
        );
        assert_eq!(
            keys(&mut app, "p2"),
            Action::Ask(key, policy(Policy::Eager))
        );
        assert_eq!(
            keys(&mut app, "pjjj\n"),
            Action::Ask(key, policy(Policy::Base))
        );
        assert_eq!(keys(&mut app, "p9"), Action::None);
        app.set_filter("nobody".to_owned());
        assert_eq!(keys(&mut app, "a"), Action::None);
        assert_eq!(keys(&mut app, "p\n"), Action::None);
    }

    #[test]
    fn a_filter_is_typed() {
        let mut app = two();
        keys(&mut app, "/twx\x08o");
        assert_eq!((app.filter.as_str(), app.visible().len()), ("two", 1));
        keys(&mut app, "\n");
        assert_eq!((app.filter.as_str(), &app.mode), ("two", &Mode::Processes));
        keys(&mut app, "/\x1b");
        assert_eq!((app.filter.as_str(), app.visible().len()), ("", 2));
    }

    #[test]
    fn a_pause_ends_with_a_look() {
        let mut app = two();
        assert_eq!(keys(&mut app, " "), Action::None);
        assert!(app.paused);
        assert_eq!(keys(&mut app, " "), Action::Look);
        assert!(!app.paused);
    }

    #[test]
    fn home_and_end_go_all_the_way() {
        let mut app = two();
        press(&mut app, KeyCode::End.into());
        assert_eq!(app.place(), Some(1));
        press(&mut app, KeyCode::Home.into());
        assert_eq!(app.place(), Some(0));
    }
}
