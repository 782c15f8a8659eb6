//! Commands at a terminal, whose screen a test reads.

use std::{
    io::{Read as _, Write as _},
    panic::{catch_unwind, resume_unwind},
    process::{Child, ChildStdin, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    thread,
};

use lab::Host;

use crate::support::{BINARY, wait_until};

/// A command at a terminal that `script` makes.
pub struct AtTerminal {
    process: Child,
    keys: ChildStdin,
    terminal: Arc<Mutex<vt100::Parser>>,
    written: Arc<Mutex<Vec<u8>>>,
}

impl AtTerminal {
    /// Starts `flow-agent` with these arguments.
    pub fn start(host: &Host, size: (u16, u16), arguments: &str) -> Self {
        Self::shell(host, size, &format!("exec {BINARY} {arguments}"))
    }

    /// Starts a line of a shell. `size` is in rows and columns.
    pub fn shell(host: &Host, (rows, columns): (u16, u16), line: &str) -> Self {
        let command = format!("stty rows {rows} cols {columns}; {line}");
        let mut script = host.command("script");
        for variable in ["NO_COLOR", "FLOW_AGENT_LOG"] {
            script.env_remove(variable);
        }
        let mut process = script
            .env("FLOW_AGENT_CONFIG", "/dev/null")
            .args(["-qefc", &command, "/dev/null"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = process.stdout.take().unwrap();
        let terminal = Arc::new(Mutex::new(vt100::Parser::new(rows, columns, 0)));
        let written = Arc::new(Mutex::new(Vec::new()));
        let (shows, keeps) = (Arc::clone(&terminal), Arc::clone(&written));
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = output.read(&mut bytes) {
                shows.lock().unwrap().process(&bytes[..read]);
                keeps.lock().unwrap().extend_from_slice(&bytes[..read]);
            }
        });
        Self {
            keys: process.stdin.take().unwrap(),
            process,
            terminal,
            written,
        }
    }

    pub fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    pub fn shown(&self) -> String {
        self.terminal.lock().unwrap().screen().contents()
    }

    /// Waits until these words are there.
    pub fn shows(&self, words: &str) {
        let is_there = || self.shown().contains(words);
        if let Err(panic) = catch_unwind(|| wait_until(words, is_there)) {
            eprintln!("the terminal shows:\n{}", self.shown());
            resume_unwind(panic);
        }
    }

    /// All bytes that went to the terminal.
    pub fn written(&self) -> String {
        String::from_utf8_lossy(&self.written.lock().unwrap()).into_owned()
    }

    pub fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until("it ended", || {
            status = self.process.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for AtTerminal {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
