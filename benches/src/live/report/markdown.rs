//! Tables in Markdown.

use std::fmt::Write as _;

/// Writes a table's header and the separator line below it.
pub fn head(out: &mut String, cells: &[String]) {
    line(out, cells);
    line(out, &vec!["---".to_owned(); cells.len()]);
}

pub fn line(out: &mut String, cells: &[String]) {
    let _ = writeln!(out, "| {} |", cells.join(" | "));
}
