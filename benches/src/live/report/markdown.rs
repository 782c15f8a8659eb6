//! Tables in Markdown.

use std::fmt::Write as _;

/// The first line of a table, and the one under it.
pub fn head(out: &mut String, cells: &[String]) {
    line(out, cells);
    line(out, &vec!["---".to_owned(); cells.len()]);
}

pub fn line(out: &mut String, cells: &[String]) {
    let _ = writeln!(out, "| {} |", cells.join(" | "));
}
