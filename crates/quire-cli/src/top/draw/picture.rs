//! The picture of a region: a character for each extent, with a legend.

use std::borrow::Cow;

use quire_core::stat::{Picture, RegionKind, RegionStat};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};

use super::put;
use crate::top::app::App;
use crate::top::look::{LEGEND, Look};

/// The picture of the chosen region.
pub fn picture(area: Rect, buffer: &mut Buffer, app: &App, look: Look) {
    let Some(region) = app.region() else {
        return;
    };
    let rows = usize::from(area.height.saturating_sub(2));
    let width = usize::from(area.width);
    let Some(shown) = fit(&region.picture, rows * width) else {
        return;
    };
    let bold = Style::new().add_modifier(Modifier::BOLD);
    put(area, buffer, 0, &Line::styled(title(region, &shown), bold));
    if shown.cells.is_empty() {
        return;
    }
    let mut row = 1;
    for cells in shown.cells.chunks(width) {
        let spans = cells.iter().map(|cell| {
            let glyph = look.glyph(*cell).to_string();
            Span::styled(glyph, look.cell_style(cell.state))
        });
        put(area, buffer, row, &Line::from_iter(spans));
        row += 1;
    }
    put(area, buffer, row, &legend(look));
}

/// The picture with so few cells that they find room; nothing where there is
/// none.
fn fit(picture: &Picture, room: usize) -> Option<Cow<'_, Picture>> {
    if room == 0 {
        return None;
    }
    Some(match picture.cells.len().div_ceil(room) {
        0 | 1 => Cow::Borrowed(picture),
        factor => Cow::Owned(picture.folded(factor)),
    })
}

fn title(region: &RegionStat, shown: &Picture) -> String {
    let head = format!("Picture of {}", region.range);
    if region.kind == RegionKind::Rest {
        return format!("{head}: many regions, which share one line");
    }
    let cells = region.picture.cells.len();
    match (cells, shown.extents_per_cell) {
        (0, _) => format!("{head}: no extents"),
        (1, 1) => format!("{head}: 1 extent"),
        (_, 1) => format!("{head}: {cells} extents, one in each cell"),
        (_, n) => {
            // The last cell may stand for fewer.
            let extents = cells * region.picture.extents_per_cell as usize;
            let about = if region.picture.extents_per_cell > 1 {
                "about "
            } else {
                ""
            };
            format!("{head}: {about}{extents} extents, {n} in each cell")
        }
    }
}

fn legend(look: Look) -> Line<'static> {
    let spans = LEGEND.into_iter().flat_map(|(cell, name)| {
        let glyph = look.glyph(cell).to_string();
        [
            Span::styled(glyph, look.cell_style(cell.state)),
            Span::raw(format!(" {name}  ")),
        ]
    });
    Line::from_iter(spans)
}
