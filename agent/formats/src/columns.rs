//! Chooses the columns of a table and their widths, so that its lines fit.

use super::human;

/// The space between two columns.
pub const GAP: &str = "  ";

/// The columns that a table may have.
pub struct Columns<'a> {
    pub titles: &'a [&'a str],
    /// Columns that are shortened if no other can be omitted.
    pub elastic: &'a [usize],
    /// An elastic column is not shortened below this width while another column can still be omitted.
    pub least_width: usize,
    /// Columns to omit, in this order, if a line is too long.
    pub dispensable: &'a [usize],
    /// Columns of numbers, which are aligned to the right.
    pub figures: &'a [usize],
}

/// A column that is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fitted {
    pub column: usize,
    pub width: usize,
}

impl Columns<'_> {
    /// The columns of `shown` that fit, each with its width. A row has a cell for each column.
    pub fn fit(
        &self,
        rows: &[impl AsRef<[String]>],
        mut shown: Vec<usize>,
        width: usize,
    ) -> Vec<Fitted> {
        let mut widths: Vec<_> = self.titles.iter().map(|title| width_of(title)).collect();
        for row in rows {
            for (width, cell) in widths.iter_mut().zip(row.as_ref()) {
                *width = (*width).max(width_of(cell));
            }
        }
        let is_shown = |column: &&usize| shown.contains(column);
        let elastic: Vec<_> = self.elastic.iter().filter(is_shown).copied().collect();
        for dispensable in self.dispensable {
            let least: usize = elastic
                .iter()
                .map(|&column| widths[column].min(self.least_width))
                .sum();
            if self.others(&shown, &widths) + least <= width {
                break;
            }
            shown.retain(|column| column != dispensable);
        }
        let room = width.saturating_sub(self.others(&shown, &widths));
        shorten(elastic, &mut widths, room);
        let fitted = shown.into_iter().map(|column| Fitted {
            column,
            width: widths[column],
        });
        fitted.collect()
    }

    /// The width of all columns but the elastic ones, with the gaps.
    fn others(&self, shown: &[usize], widths: &[usize]) -> usize {
        let fixed = shown.iter().filter(|column| !self.elastic.contains(column));
        let cells: usize = fixed.map(|&column| widths[column]).sum();
        cells + shown.len().saturating_sub(1) * GAP.len()
    }

    pub fn line(&self, cells: &[impl AsRef<str>], fitted: &[Fitted]) -> String {
        let padded = fitted
            .iter()
            .map(|one| self.padded(cells[one.column].as_ref(), *one));
        let line = padded.collect::<Vec<_>>().join(GAP);
        line.trim_end().to_owned()
    }

    /// A cell as wide as its column.
    pub fn padded(&self, cell: &str, Fitted { column, width }: Fitted) -> String {
        let cell = human::shortened(cell, width).to_string();
        if self.figures.contains(&column) {
            format!("{cell:>width$}")
        } else {
            format!("{cell:<width$}")
        }
    }
}

/// Divides the room equally among these columns. One that needs less than its share leaves the rest to the others.
fn shorten(mut elastic: Vec<usize>, widths: &mut [usize], mut room: usize) {
    elastic.sort_by_key(|&column| widths[column]);
    let mut left = elastic.len();
    for column in elastic {
        widths[column] = widths[column].min(room / left);
        room -= widths[column];
        left -= 1;
    }
}

fn width_of(text: &str) -> usize {
    text.chars().count()
}
