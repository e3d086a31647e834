//! The windows that open over the rest: the choice of a policy, and help.

use quire_core::config::Policy;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear, Paragraph, Widget};

use crate::stat::printable;
use crate::top::app::App;
use crate::top::keys::HELP;
use crate::top::look::Look;

/// The window in which a policy is chosen.
pub fn policies(area: Rect, buffer: &mut Buffer, app: &App, place: usize, look: Look) {
    let Some(row) = app.chosen() else {
        return;
    };
    let title = format!("Policy of {} ({})", row.stat.pid, printable(&row.stat.comm));
    let lines = Policy::ALL.iter().enumerate().map(|(number, policy)| {
        let (mark, style) = if number == place {
            ('>', Style::new().add_modifier(Modifier::REVERSED))
        } else {
            (' ', Style::new())
        };
        let text = format!(
            "{mark} {} {:<9} {}",
            number + 1,
            policy.name(),
            effect(*policy)
        );
        Line::styled(text, style)
    });
    window(area, buffer, &title, lines.collect(), look);
}

fn effect(policy: Policy) -> &'static str {
    match policy {
        Policy::Base => "base pages only",
        Policy::Eager => "a superpage at the first touch",
        Policy::Reserve => "reserve, and promote when full",
        Policy::Adaptive => "as neighbouring memory filled up (default)",
        Policy::Static => "from the hugetlb pool",
    }
}

/// The window that explains the keys.
pub fn help(area: Rect, buffer: &mut Buffer, look: Look) {
    let lines = HELP.map(|(keys, does)| Line::from(format!("{keys:<18}  {does}")));
    window(area, buffer, "Keys", lines.to_vec(), look);
}

/// A window in the middle, as large as its lines, or as there is room.
fn window(area: Rect, buffer: &mut Buffer, title: &str, lines: Vec<Line<'_>>, look: Look) {
    let title = format!(" {title} ");
    let texts = lines.iter().map(Line::width);
    let width = texts.chain([title.chars().count()]).max().unwrap_or(0) + 4;
    let width = u16::try_from(width).unwrap_or(u16::MAX).min(area.width);
    let height = (lines.len() as u16 + 2).min(area.height);
    let place = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    };
    Clear.render(place, buffer);
    let block = Block::bordered()
        .border_set(look.border())
        .title(title)
        .padding(ratatui::widgets::Padding::horizontal(1));
    Paragraph::new(lines).block(block).render(place, buffer);
}
