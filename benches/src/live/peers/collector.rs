//! Counts the packets that an exporter reports over UDP. It records the datagrams to a file, which nfacctd reads once
//! the exporter has ended. So nfacctd need not keep up with the exporter and takes no CPU from it; only the recording
//! does.

use std::{
    fs::{self, File},
    io::{BufReader, BufWriter, Write as _},
    net::UdpSocket,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use lab::{Frame, Host, Lab};

use super::{peer::Peer, table};
use crate::live::{affinity, interrupt::Interrupt};

pub const PORT: u16 = 4739;
/// A million flows may come in one burst while this thread gets no CPU.
const QUEUE_BYTES: usize = 256 << 20;
/// How often an idle recorder checks whether to stop.
const LOOK: Duration = Duration::from_millis(100);

/// Records datagrams until [`Collector::packets`] is called.
pub struct Collector {
    // Stays open until the kernel's drop counter has been read.
    socket: UdpSocket,
    ends: Arc<AtomicBool>,
    recorder: Option<JoinHandle<Result<()>>>,
    folder: PathBuf,
}

impl Collector {
    /// Writes its files to `folder`.
    pub fn start(lab: &Lab, folder: &Path) -> Result<Self> {
        let bind = || Ok(UdpSocket::bind(("127.0.0.1", PORT))?);
        let socket = lab.agent.namespace.enter(bind).context("open a socket")?;
        socket.set_read_timeout(Some(LOOK))?;
        rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, QUEUE_BYTES)
            .context("give the socket room")?;
        let receiver = socket.try_clone().context("share the socket")?;
        let file = File::create(record(folder)).context("make a file for datagrams")?;
        let frame = lab.peer.frame_v4(&lab.agent);
        let ends = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&ends);
        let recorder = thread::spawn(move || {
            affinity::keep_this_thread_off_sender()?;
            write_record(&receiver, file, &frame, &ended)
        });
        Ok(Self {
            socket,
            ends,
            recorder: Some(recorder),
            folder: folder.to_owned(),
        })
    }

    /// The packets in all reports of an exporter that has ended.
    pub fn packets(mut self, host: &Host, nfacctd: &Path, interrupt: &Interrupt) -> Result<u64> {
        self.ends.store(true, Ordering::Relaxed);
        let recorder = self.recorder.take().context("it was asked before")?;
        match recorder.join() {
            Ok(outcome) => outcome.context("record datagrams")?,
            Err(panicked) => std::panic::resume_unwind(panicked),
        }
        let sockets = || Ok(fs::read_to_string("/proc/thread-self/net/udp")?);
        let sockets = host.namespace.enter(sockets)?;
        let lost = lost_at(PORT, &sockets).context("the kernel does not list our socket")?;
        ensure!(
            lost == 0,
            "{lost} datagrams found no room at {}: what they reported is not known",
            self.socket.local_addr()?
        );
        read_record(&self.folder, host, nfacctd, interrupt)
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(recorder) = self.recorder.take() {
            // The turn has already failed and reported why.
            let _ = recorder.join();
        }
    }
}

fn record(folder: &Path) -> PathBuf {
    folder.join("datagrams.pcap")
}

/// Writes the datagrams to a capture file (`pcap-savefile(5)`) until `ends` is set and no more arrive.
fn write_record(socket: &UdpSocket, file: File, frame: &Frame, ends: &AtomicBool) -> Result<()> {
    const MAGIC: u32 = 0xa1b2_c3d4;
    const ETHERNET: u32 = 1;
    let mut file = BufWriter::with_capacity(1 << 20, file);
    for word in [MAGIC, 2 | 4 << 16, 0, 0, 1 << 16, ETHERNET] {
        file.write_all(&word.to_ne_bytes())?;
    }
    let mut datagram = vec![0; 1 << 16];
    loop {
        // Read the flag before the socket, so that no datagram can arrive after the last read.
        let is_last = ends.load(Ordering::Relaxed);
        let Ok((len, from)) = socket.recv_from(&mut datagram) else {
            // A read timeout is an error too.
            if is_last {
                return file.flush().context("write the capture");
            }
            continue;
        };
        let frame = frame.udp(from.port(), PORT, &datagram[..len])?;
        let len = u32::try_from(frame.len())?;
        for word in [0, 0, len, len] {
            file.write_all(&word.to_ne_bytes())?;
        }
        file.write_all(&frame)?;
    }
}

/// Has nfacctd add up the packets of all records in the capture.
fn read_record(folder: &Path, host: &Host, nfacctd: &Path, interrupt: &Interrupt) -> Result<u64> {
    let sums = folder.join("sums.csv");
    // nfacctd sleeps after each buffer that it passes to its plugin. By default a buffer holds one record, and a
    // million records take minutes.
    let settings = format!(
        "daemonize: false\n\
         pcap_savefile: {}\n\
         aggregate: none\n\
         plugins: print\n\
         print_output: csv\n\
         print_output_file: {}\n\
         print_output_file_append: true\n\
         plugin_buffer_size: 640000\n\
         plugin_pipe_size: 64000000\n",
        record(folder).display(),
        sums.display()
    );
    let config = folder.join("nfacctd.conf");
    fs::write(&config, settings).with_context(|| format!("write {}", config.display()))?;
    let mut command = host.command(nfacctd);
    command.arg("-f").arg(&config);
    let mut reader = Peer::start(&mut command, folder.join("nfacctd.log"))?;
    reader.wait_until_ended(interrupt)?;
    let log = reader.log()?;
    // nfacctd warns `Missing data detected` if its plugin did not keep up.
    if let Some(line) = log.lines().find(|line| line.starts_with("WARN")) {
        bail!("nfacctd did not read everything: {line}");
    }
    let file = File::open(&sums).with_context(|| format!("nfacctd found no flow: {log}"))?;
    table::packets(BufReader::new(file)).context("read what nfacctd printed")
}

/// The datagrams that the socket at this port dropped, from `/proc/net/udp`; `None` if no socket has the port.
fn lost_at(port: u16, sockets: &str) -> Option<u64> {
    let port = format!(":{port:04X}");
    let has_port = |line: &&str| {
        let address = line.split_whitespace().nth(1);
        address.is_some_and(|address| address.ends_with(&port))
    };
    let line = sockets.lines().find(has_port)?;
    line.split_whitespace().next_back()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_dropped_is_told_by_the_port() {
        let sockets = "\
   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
  411: 0100007F:1283 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 71442 2 0000000000000000 7
 5667: 0100007F:270B 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 71443 2 0000000000000000 0
";
        assert_eq!(lost_at(4739, sockets), Some(7));
        assert_eq!(lost_at(9995, sockets), Some(0));
        assert_eq!(lost_at(53, sockets), None);
    }
}
