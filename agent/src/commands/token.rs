//! `flow-agent token`: creates the tokens that identify callers to a collector.

use std::{
    fs::OpenOptions,
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, Result, anyhow};
use sys::regular_file;
use tls::{
    identity::{Identity, Role, Roles},
    token::{self, known},
};

use super::answer;

/// The file has hashes but no tokens, so every user may read it, including the collector's.
const MODE: u32 = 0o644;

/// Make the tokens that identify callers to a collector.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum Command {
    New(NewArgs),
}

/// Print a token on stdout, and add its name, its roles and its hash to a collector's file.
///
/// The token appears only in this output. The collector reads the file within ten seconds. To replace a token, make
/// another one of the same name, hand it out, and remove the line of the first. To withdraw one, remove its line, which
/// also ends its open calls.
#[derive(Clone, Debug, clap::Args)]
struct NewArgs {
    /// Who owns it. To send, the name of the agent's host.
    #[arg(value_name = "NAME", value_parser = name)]
    name: Identity,

    /// The collector's --token-file. Created if it does not exist.
    #[arg(long, value_name = "FILE", env = "FLOW_AGENT_COLLECT_TOKEN_FILE")]
    file: PathBuf,

    /// What it allows; repeatable.
    #[arg(
        long,
        value_name = "ROLE",
        value_enum,
        value_delimiter = ',',
        default_value = "send"
    )]
    role: Vec<Role>,
}

fn name(text: &str) -> Result<Identity, String> {
    let named = Identity::named(text);
    named.ok_or_else(|| "expected a name of letters, digits and . - _, such as a host's".to_owned())
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let Command::New(new) = &args.command;
    let token = token::made().map_err(|_| anyhow!("the kernel gives no random numbers"))?;
    let roles: Roles = new.role.iter().copied().collect();
    append(&new.file, &known::line(&new.name, roles, &token))
        .with_context(|| format!("add a token to {}", new.file.display()))?;
    answer::print(&format!("{token}\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// Appends the line in one write, so that several processes may append at the same time.
fn append(path: &Path, line: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let options = options.append(true).create(true).mode(MODE);
    let mut file = options.custom_flags(libc::O_NONBLOCK).open(path)?;
    let (text, _) = regular_file::read(path, known::MOST_FILE_BYTES)?;
    let is_cut = text.last().is_some_and(|&last| last != b'\n');
    let before = if is_cut { "\n" } else { "" };
    file.write_all(format!("{before}{line}").as_bytes())?;
    file.sync_all()
}
