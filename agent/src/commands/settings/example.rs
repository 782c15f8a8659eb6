//! An example settings file with every setting in a comment: its purpose, its values and its default. Generated from
//! the options.

use std::fmt::Write as _;

use super::{
    declared::{Declared, Kind},
    show::toml,
};
use crate::commands::run::TAKEN_OVER;

const WIDTH_CHARS: usize = 100;

const HEAD: &str = "\
Settings of flow-agent, for /etc/flow-agent/config.toml.

Every setting is in a comment with its default. Options of `flow-agent run` and environment variables (FLOW_AGENT_ and \
the setting's name in capitals) come before this file. `flow-agent config check` says whether the file can be read, \
`flow-agent config show --connect` what is in force and where it came from.";

/// The text of the file.
pub fn example() -> String {
    let command = super::command();
    let mut file = String::new();
    comment(&mut file, HEAD);
    let mut heading = "";
    for setting in Declared::all(&command) {
        if setting.heading() != heading {
            heading = setting.heading();
            let line = "-".repeat(heading.chars().count());
            // Writing to a string does not fail.
            let _ = write!(file, "\n# {heading}\n# {line}\n");
        }
        file.push('\n');
        comment(&mut file, &help(&setting));
        comment(&mut file, &values(&setting));
        if TAKEN_OVER.contains(&&*setting.name()) {
            comment(&mut file, "SIGHUP takes a change over.");
        }
        let _ = writeln!(file, "#{} = {}", setting.name(), default(&setting));
    }
    file
}

/// The setting's help text, with settings named as in a file.
pub fn help(setting: &Declared<'_>) -> String {
    let command = super::command();
    let mut options: Vec<&str> = Declared::all(&command)
        .map(|other| other.option())
        .collect();
    // Longest first: one option's name may begin with another's.
    options.sort_by_key(|option| std::cmp::Reverse(option.len()));
    // clap removes the full stop at the end.
    let help = setting.help() + ".";
    options.iter().fold(help, |help, option| {
        help.replace(&format!("--{option}"), &option.replace('-', "_"))
    })
}

fn values(setting: &Declared<'_>) -> String {
    match setting.kind() {
        Kind::Boolean => "One of true, false.".to_owned(),
        Kind::Integer { least, most } => format!("From {least} to {most}."),
        Kind::Choice(choices) => format!("One of \"{}\".", choices.join("\", \"")),
        Kind::Text => String::new(),
    }
}

/// The default, or the placeholder of `--help` if there is none.
fn default(setting: &Declared<'_>) -> String {
    let default = setting.value(&setting.defaults());
    if default.is_null() {
        toml(&setting.placeholder().into())
    } else {
        toml(&default)
    }
}

/// Writes the text as comment lines.
fn comment(file: &mut String, text: &str) {
    for line in text.lines() {
        let mut written = "#".to_owned();
        for word in line.split_whitespace() {
            if written.chars().count() + 1 + word.chars().count() > WIDTH_CHARS {
                *file += &written;
                *file += "\n";
                "#".clone_into(&mut written);
            }
            written += " ";
            written += word;
        }
        *file += &written;
        *file += "\n";
    }
}
