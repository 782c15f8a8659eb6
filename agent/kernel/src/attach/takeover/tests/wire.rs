//! A wire with frames in both directions, and the programs on it.

use std::{
    net::Ipv4Addr,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Duration,
};

use lab::{AtEnd, Frame, FrameSocket, Namespace, kernel::has_tcx, tcx_programs};

use crate::{
    attach::tests::wires,
    links::{AttachedXdp, links},
};

/// A wire from `new0` to `far0`.
pub struct Wire {
    pub namespace: Namespace,
    pub ifindex: u32,
    ends: [FrameSocket; 2],
}

impl Wire {
    pub fn new(label: &str) -> Self {
        let namespace = Namespace::new(label).unwrap();
        let ifindex = wires(&namespace, 1)[0].ifindex;
        let end = |name| FrameSocket::new(&namespace, name).unwrap();
        let ends = [end("far0"), end("new0")];
        Self {
            namespace,
            ifindex,
            ends,
        }
    }

    /// Sends this many frames in each direction, and returns the total.
    pub fn send(&self, frames: u64) -> u64 {
        let [from, to] = [1, 2].map(|number| Ipv4Addr::new(10, 77, 0, number));
        let frame = Frame::ethernet([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], from, to);
        let frame = frame.udp(1, 2, &[0; 18]).unwrap();
        for end in &self.ends {
            let frames = std::iter::repeat_n(&frame, frames as usize);
            end.send_many(frames).unwrap();
        }
        2 * frames
    }

    /// Sends while `work` runs, and returns how many frames passed the interface.
    pub fn send_during<T>(&self, work: impl FnOnce() -> T) -> (u64, T) {
        let ends = AtomicBool::new(false);
        thread::scope(|scope| {
            let sender = scope.spawn(|| {
                let mut sent = 0;
                while !ends.load(Relaxed) {
                    sent += self.send(16);
                    thread::sleep(Duration::from_micros(200));
                }
                sent
            });
            let at_end = AtEnd(|| ends.store(true, Relaxed));
            let result = work();
            drop(at_end);
            (sender.join().unwrap(), result)
        })
    }

    /// The programs that count ingress and egress.
    pub fn programs(&self) -> [usize; 2] {
        self.programs_on("new0", self.ifindex)
    }

    /// The same on another interface.
    pub fn programs_on(&self, name: &str, ifindex: u32) -> [usize; 2] {
        let mut programs = if has_tcx() {
            tcx_programs(&self.namespace, ifindex).unwrap()
        } else {
            [0, 0]
        }
        .map(|programs| programs as usize);
        programs[0] += usize::from(self.xdp(ifindex) != AttachedXdp::None);
        for (programs, side) in programs.iter_mut().zip(["ingress", "egress"]) {
            let mut command = self.namespace.command("tc");
            let output = command.args(["filter", "show", "dev", name, side]);
            let shown = String::from_utf8(output.output().unwrap().stdout).unwrap();
            *programs += shown.matches("flow-agent:").count();
        }
        programs
    }

    /// How XDP is attached to an interface.
    pub fn xdp(&self, ifindex: u32) -> AttachedXdp {
        let all = self.namespace.enter(links).unwrap();
        let it = all.iter().find(|link| link.ifindex == ifindex);
        it.unwrap().xdp
    }
}
