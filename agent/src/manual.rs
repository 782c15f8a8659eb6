//! The manual pages: one for each command, made from its help.

use std::{
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use clap::{Arg, ArgAction, Command};
use clap_mangen::Man;

/// Writes the pages into a directory, which is made if it does not exist.
pub fn write(command: Command, directory: &Path) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("make {}", directory.display()))?;
    let mut command = command.disable_help_subcommand(true);
    command.build();
    for (name, page) in pages(&command).context("make the manual pages")? {
        let path: PathBuf = directory.join(name);
        fs::write(&path, page).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

/// The pages of a built command and of its subcommands, each with its file's name.
fn pages(command: &Command) -> io::Result<Vec<(String, String)>> {
    let man = Man::new(command.clone().override_usage(synopsis(command)));
    let mut page = Vec::new();
    man.render(&mut page)?;
    let page = laid_out(&String::from_utf8_lossy(&page));
    let mut all = vec![(man.get_filename(), page)];
    for subcommand in command.get_subcommands() {
        all.extend(pages(subcommand)?);
    }
    Ok(all)
}

/// The command with each option and its value, which clap's own usage sums up as `[OPTIONS]`.
fn synopsis(command: &Command) -> String {
    let name = command.get_bin_name().unwrap_or(command.get_name());
    let mut synopsis = name.to_owned();
    let is_shown = |arg: &&Arg| !arg.is_hide_set();
    let (positional, options): (Vec<_>, Vec<_>) = command
        .get_arguments()
        .filter(is_shown)
        .partition(|arg| arg.is_positional());
    for option in options {
        let short = option.get_short();
        let short = short.map_or_else(String::new, |short| format!("-{short}|"));
        let dots = if matches!(option.get_action(), ArgAction::Append) {
            "..."
        } else {
            ""
        };
        let [open, close] = if option.is_required_set() {
            ["", ""]
        } else {
            ["[", "]"]
        };
        // Writing to a string never fails.
        let _ = write!(synopsis, " {open}{short}{option}{close}{dots}");
    }
    for argument in positional {
        let _ = if argument.is_last_set() {
            write!(synopsis, " [-- {argument}]")
        } else {
            write!(synopsis, " {argument}")
        };
    }
    if command.has_subcommands() {
        synopsis.push_str(if command.is_subcommand_required_set() {
            " <COMMAND>"
        } else {
            " [COMMAND]"
        });
    }
    synopsis
}

/// Keeps the lines of indented text, such as examples and tables, as they are, and splits no options at their hyphens.
fn laid_out(page: &str) -> String {
    let mut marked = String::with_capacity(page.len());
    let mut is_example = false;
    for line in page.lines() {
        if line.starts_with("  ") != is_example {
            is_example = !is_example;
            marked.push_str(if is_example { ".EX\n" } else { ".EE\n" });
        }
        marked.push_str(line);
        marked.push('\n');
        if line.starts_with(".TH ") {
            marked.push_str(".nh\n.ad l\n");
        }
    }
    marked
}
