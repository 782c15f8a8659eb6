//! The contenders, the agent and its peers: starts and stops each of them and reads what it reported.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{BufReader, Read as _, Write as _},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use lab::{Host, Lab};
use tempfile::TempDir;

use super::{
    FRAME_LEN_BYTES, Load,
    collector::{Collector, PORT},
    peer::Peer,
    table,
};
use crate::live::{
    bench::Setup,
    cost::process_tree,
    interrupt::Interrupt,
    program::{Agent, PATIENCE},
};

/// The size of the ring in [`crate::capture`], for a fair comparison.
const RING_BYTES: usize = 128 << 20;
/// softflowd's `-m`; its default is 8,192.
const MOST_FLOWS: u32 = 2_000_000;
/// The agent's default for `--max-flows`.
const USUAL_TABLE: u32 = 500_000;

/// The peers' programs in their unpacked packages.
pub struct Packages {
    softflowd: PathBuf,
    pmacctd: PathBuf,
    nfacctd: PathBuf,
}

impl Packages {
    pub fn new(folder: &Path) -> Self {
        Self {
            softflowd: folder.join("softflowd/usr/sbin/softflowd"),
            pmacctd: folder.join("pmacct/usr/sbin/pmacctd"),
            nfacctd: folder.join("pmacct/usr/sbin/nfacctd"),
        }
    }

    /// The versions, as a sentence.
    pub fn versions(&self) -> Result<String> {
        let softflowd = version(&self.softflowd, "-h")?;
        let pmacctd = version(&self.pmacctd, "-V")?;
        Ok(format!(
            "The peers are softflowd {softflowd} and pmacctd {pmacctd} of Debian's packages."
        ))
    }
}

fn version(program: &Path, option: &str) -> Result<String> {
    let output = Command::new(program).arg(option).output();
    let output = output.with_context(|| format!("start {}", program.display()))?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    version_in(&said).with_context(|| format!("{} says no version", program.display()))
}

/// The first word that is a dotted number.
fn version_in(text: &str) -> Option<String> {
    let mut words = text
        .split_whitespace()
        .map(|word| word.trim_end_matches('.'));
    let is_version =
        |word: &&str| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.');
    words.find(is_version).map(str::to_owned)
}

/// A running contender.
pub struct Contender {
    program: Program,
    reports: Reports,
}

enum Program {
    Agent(Box<Agent>),
    /// With the path of its control socket.
    Softflowd(Peer, PathBuf),
    Pmacctd(Peer),
}

/// Where the contender sends its reports.
enum Output {
    Collector(Collector, PathBuf),
    Table(PathBuf),
}

impl Contender {
    /// Returns once the contender counts, or `None` for the arm `nothing`.
    pub fn start(
        arm: &str,
        lab: &Lab,
        load: Load,
        packages: &Packages,
        setup: &Setup,
    ) -> Result<Option<Self>> {
        let folder = TempDir::with_prefix("flow-bench-peers-").context("make a folder")?;
        let path = folder.path();
        let collector = || -> Result<Output> {
            let collector = Collector::start(lab, path)?;
            Ok(Output::Collector(collector, packages.nfacctd.clone()))
        };
        let host = &lab.agent;
        let (output, program) = match arm {
            "nothing" => return Ok(None),
            "agent" => (collector()?, agent(host, load, setup)?),
            "softflowd" => {
                let output = collector()?;
                let program = softflowd(&packages.softflowd, host, path, &setup.interrupt)?;
                (output, program)
            }
            _ => {
                let table = path.join("flows.csv");
                let program = pmacctd(&packages.pmacctd, host, load, &table, &setup.interrupt)?;
                (Output::Table(table), program)
            }
        };
        let reports = Reports {
            output,
            _folder: folder,
        };
        Ok(Some(Self { program, reports }))
    }

    pub fn processes(&mut self) -> Result<BTreeSet<u32>> {
        match &mut self.program {
            Program::Agent(agent) => process_tree(agent.pid()),
            Program::Softflowd(peer, _) | Program::Pmacctd(peer) => peer.processes(),
        }
    }

    /// The ids of its BPF programs.
    pub fn program_ids(&mut self) -> Result<BTreeSet<u32>> {
        match &mut self.program {
            Program::Agent(agent) => agent.program_ids(),
            Program::Softflowd(..) | Program::Pmacctd(_) => Ok(BTreeSet::new()),
        }
    }

    /// Stops the contender as an operator would, so that it reports everything it holds.
    pub fn end(self, lab: &Lab, interrupt: &Interrupt) -> Result<Reports> {
        match self.program {
            Program::Agent(agent) => agent.stop()?,
            Program::Softflowd(mut peer, control) => {
                fill_block(lab)?;
                peer.wait_until_idle(interrupt)?;
                shut_down(&control)?;
                peer.wait_until_ended(interrupt)?;
            }
            Program::Pmacctd(mut peer) => {
                peer.wait_until_idle(interrupt)?;
                peer.signal(libc::SIGINT)?;
                peer.wait_until_ended(interrupt)?;
            }
        }
        Ok(self.reports)
    }
}

/// The reports of a contender. Read them once it has ended.
pub struct Reports {
    output: Output,
    _folder: TempDir,
}

impl Reports {
    /// The packets in all reports.
    pub fn packets(self, host: &Host, interrupt: &Interrupt) -> Result<u64> {
        match self.output {
            Output::Collector(collector, nfacctd) => collector.packets(host, &nfacctd, interrupt),
            Output::Table(path) => {
                let file = File::open(&path).context("pmacctd printed no flow")?;
                table::packets(BufReader::new(file)).context("read what pmacctd printed")
            }
        }
    }
}

fn agent(host: &Host, load: Load, setup: &Setup) -> Result<Program> {
    let output =
        format!(r#"{{"kind": "ipfix", "address": "udp://127.0.0.1:{PORT}", "uniflow": true}}"#);
    let table = load.flows.max(USUAL_TABLE).to_string();
    let settings = ["--max-flows", &table, "--output", &output];
    let mut agent = Agent::start(host, &settings, setup)?;
    agent.keep_off_sender()?;
    Ok(Program::Agent(Box::new(agent)))
}

fn softflowd(program: &Path, host: &Host, folder: &Path, interrupt: &Interrupt) -> Result<Program> {
    let control = folder.join("control");
    let mut command = host.command(program);
    command
        // In the foreground softflowd keeps its privileges and does not need the folder that the package creates.
        .args(["-d", "-i", &host.interface, "-v", "10"])
        .args(["-n", &format!("127.0.0.1:{PORT}")])
        .args(["-m", &MOST_FLOWS.to_string()])
        .args(["-B", &RING_BYTES.to_string()])
        .arg("-c")
        .arg(&control);
    let mut peer = Peer::start(&mut command, folder.join("softflowd.log"))?;
    peer.wait_until_logged("starting data collection", interrupt)?;
    peer.wait_until_idle(interrupt)?;
    Ok(Program::Softflowd(peer, control))
}

/// Sends frames that softflowd ignores. It wakes only for full blocks of its ring (softflowd 1.1.0 sets a timeout of 0
/// with `pcap_set_timeout`), so without these frames the last packets would stay in an incomplete block.
fn fill_block(lab: &Lab) -> Result<()> {
    /// An EtherType for experiments (IEEE 802).
    const NO_PROTOCOL: [u8; 2] = [0x88, 0xb5];
    /// A block holds about 400 of these frames.
    const FRAMES: usize = 1_000;
    let mut frame = [&lab.agent.mac[..], &lab.peer.mac, &NO_PROTOCOL].concat();
    frame.resize(FRAME_LEN_BYTES, 0);
    let socket = lab.peer.frame_socket()?;
    let batch = vec![frame; FRAMES / 4];
    for _ in 0..4 {
        socket.send_many(&batch).context("fill softflowd's block")?;
    }
    Ok(())
}

/// Does the same as `softflowctl shutdown`: softflowd exports all flows and exits.
fn shut_down(control: &Path) -> Result<()> {
    let mut socket = UnixStream::connect(control).context("connect to softflowd")?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket
        .write_all(b"shutdown\n")
        .context("ask softflowd to end")?;
    let mut answer = String::new();
    socket
        .read_to_string(&mut answer)
        .context("wait for softflowd's answer")?;
    ensure!(
        answer.contains("Shutting down gracefully"),
        "softflowd answers {answer:?}"
    );
    Ok(())
}

fn pmacctd(
    program: &Path,
    host: &Host,
    load: Load,
    table: &Path,
    interrupt: &Interrupt,
) -> Result<Program> {
    // The default fits 150,000 entries. Two million would need 259,991 (it should be a prime: CONFIG-KEYS of pmacct
    // 1.7.7).
    let cache = if load.flows > 100_000 {
        130_003
    } else {
        16_411
    };
    let settings = format!(
        "daemonize: false\n\
         pcap_interface: {}\n\
         pmacctd_pipe_size: {RING_BYTES}\n\
         aggregate: src_host, dst_host, src_port, dst_port, proto\n\
         plugins: print\n\
         plugin_buffer_size: 1024000\n\
         plugin_pipe_size: 102400000\n\
         print_cache_entries: {cache}\n\
         print_output: csv\n\
         print_output_file: {}\n\
         print_output_file_append: true\n",
        host.interface,
        table.display()
    );
    let (config, log) = (table.with_extension("conf"), table.with_extension("log"));
    fs::write(&config, settings).with_context(|| format!("write {}", config.display()))?;
    let mut command = host.command(program);
    command.arg("-f").arg(&config);
    let mut peer = Peer::start(&mut command, log)?;
    // The last line that its plugin logs before it counts.
    peer.wait_until_logged("cache entries=", interrupt)?;
    peer.wait_until_idle(interrupt)?;
    Ok(Program::Pmacctd(peer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_found_in_what_programs_say() {
        let softflowd = "Usage: softflowd [options] [bpf_program]\n\
                         This is softflowd version 1.1.0. Valid commandline options:\n";
        let pmacctd = "Promiscuous Mode Accounting Daemon, pmacctd 1.7.7-git [RELEASE]\n";
        for (said, version) in [(softflowd, "1.1.0"), (pmacctd, "1.7.7-git")] {
            assert_eq!(version_in(said).as_deref(), Some(version));
        }
        assert_eq!(version_in("4 of them."), None);
    }
}
