//! A full-speed sender: millions of copies of a frame per second.
//!
//! The kernel makes the copies: `BPF_PROG_TEST_RUN` with `BPF_F_TEST_XDP_LIVE_FRAMES` (5.18) runs an XDP program that
//! redirects each copy to the interface.

use std::{
    ffi::c_long,
    io,
    mem::{size_of_val, zeroed},
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
};

use anyhow::{Context as _, Result};

use crate::Namespace;

const BPF_PROG_LOAD: c_long = 5;
const BPF_PROG_TEST_RUN: c_long = 10;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_F_TEST_XDP_LIVE_FRAMES: u32 = 1 << 1;

/// The differences between the copies of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variety {
    Same,
    /// Gives each copy of an untagged IPv4 frame a random source address out of this many; 0 stands for all 2^32. Does
    /// not update the header's checksum.
    Sources(u32),
}

/// Sends on one interface.
///
/// On a veth the other end must poll: it needs a native XDP program, or `gro` on. Otherwise the kernel silently drops
/// every frame. It also drops frames while the other end's ring is full, so only that end's [`crate::Counters`] show
/// how many arrived. The frames pass no queueing discipline and no TC egress hook.
#[derive(Debug)]
pub struct Generator<'a> {
    namespace: &'a Namespace,
    program: OwnedFd,
}

impl<'a> Generator<'a> {
    pub fn new(namespace: &'a Namespace, interface: &str, variety: Variety) -> Result<Self> {
        let ifindex = namespace.ifindex(interface)?;
        let program = load_sender(ifindex, variety)
            .with_context(|| format!("load an XDP program for {interface}"))?;
        Ok(Self { namespace, program })
    }

    /// Sends `count` copies, on the given CPU or on any, and returns once the last one is on its way. Several threads
    /// may send at the same time.
    pub fn send(&self, frame: &[u8], count: u32, cpu: Option<usize>) -> Result<()> {
        self.namespace.enter(|| {
            if let Some(cpu) = cpu {
                pin_to(cpu).with_context(|| format!("pin a thread to CPU {cpu}"))?;
            }
            let run = TestRun {
                program: self.program.as_raw_fd(),
                frame_len_bytes: u32::try_from(frame.len())
                    .context("a frame's length has 32 bits")?,
                frame: frame.as_ptr() as u64,
                repeat: count,
                flags: BPF_F_TEST_XDP_LIVE_FRAMES,
                ..TestRun::default()
            };
            // SAFETY: the attributes have this command's layout, and the frame outlives the call.
            unsafe { bpf(BPF_PROG_TEST_RUN, &run) }
                .with_context(|| format!("send {count} frames of {} bytes", frame.len()))?;
            Ok(())
        })
    }
}

/// `union bpf_attr` for `BPF_PROG_TEST_RUN`, from `include/uapi/linux/bpf.h`.
#[repr(C)]
#[derive(Default)]
struct TestRun {
    program: i32,
    return_value: u32,
    frame_len_bytes: u32,
    out_len_bytes: u32,
    frame: u64,
    out: u64,
    repeat: u32,
    duration: u32,
    context_len_in_bytes: u32,
    context_len_out_bytes: u32,
    context_in: u64,
    context_out: u64,
    flags: u32,
    cpu: u32,
    batch_len: u32,
    reserved: u32,
}

/// The first fields of `union bpf_attr` for `BPF_PROG_LOAD`. The kernel takes omitted fields as zero.
#[repr(C)]
struct ProgramLoad {
    program_type: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
}

/// An instruction (`struct bpf_insn`). The two registers share a byte, with the destination in the low half.
#[repr(C)]
struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// Writes a source address if the copies are to differ, then does `return bpf_redirect(ifindex, 0);`.
fn load_sender(ifindex: u32, variety: Variety) -> io::Result<OwnedFd> {
    const BPF_FUNC_REDIRECT: i32 = 23;
    let mut instructions = match variety {
        Variety::Same => Vec::new(),
        Variety::Sources(sources) => random_source(sources),
    };
    instructions.extend([
        instruction(MOVE_IMMEDIATE, 1, 0, ifindex.cast_signed()),
        instruction(MOVE_IMMEDIATE, 2, 0, 0),
        instruction(CALL, 0, 0, BPF_FUNC_REDIRECT),
        instruction(EXIT, 0, 0, 0),
    ]);
    let load = ProgramLoad {
        program_type: BPF_PROG_TYPE_XDP,
        instruction_count: instructions.len() as u32,
        instructions: instructions.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
    };
    // SAFETY: the attributes have this command's layout, and their pointers are valid during the call.
    let fd = unsafe { bpf(BPF_PROG_LOAD, &load) }?;
    // SAFETY: the kernel has just opened the descriptor for us. A descriptor fits an int.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

const MOVE_IMMEDIATE: u8 = 0xB7;
const MOVE: u8 = 0xBF;
const ADD_IMMEDIATE: u8 = 0x07;
const MODULO_IMMEDIATE_32: u8 = 0x94;
const LOAD_32: u8 = 0x61;
const STORE_32: u8 = 0x63;
const JUMP_IF_GREATER: u8 = 0x2D;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

const fn instruction(code: u8, registers: u8, offset: i16, immediate: i32) -> Instruction {
    Instruction {
        code,
        registers,
        offset,
        immediate,
    }
}

/// Writes a random source address. Leaves a frame alone that is too short for an address.
fn random_source(sources: u32) -> Vec<Instruction> {
    const BPF_FUNC_GET_PRANDOM_U32: i32 = 7;
    const SOURCE_OFFSET_BYTES: i16 = 14 + 12;
    let mut instructions = vec![
        instruction(MOVE, 0x16, 0, 0),
        instruction(CALL, 0, 0, BPF_FUNC_GET_PRANDOM_U32),
    ];
    if sources != 0 {
        instructions.push(instruction(
            MODULO_IMMEDIATE_32,
            0,
            0,
            sources.cast_signed(),
        ));
    }
    instructions.extend([
        // `data` and `data_end` of `struct xdp_md`.
        instruction(LOAD_32, 0x61, 0, 0),
        instruction(LOAD_32, 0x62, 4, 0),
        instruction(MOVE, 0x13, 0, 0),
        instruction(ADD_IMMEDIATE, 3, 0, i32::from(SOURCE_OFFSET_BYTES) + 4),
        instruction(JUMP_IF_GREATER, 0x23, 1, 0),
        instruction(STORE_32, 0x01, SOURCE_OFFSET_BYTES, 0),
    ]);
    instructions
}

/// # Safety
///
/// `attributes` has the layout that the kernel expects of `command`, and its pointers are valid.
unsafe fn bpf<T>(command: c_long, attributes: &T) -> io::Result<c_long> {
    // SAFETY: the caller guarantees it. The kernel reads no more than the given size.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            &raw const *attributes,
            size_of_val(attributes),
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Restricts the calling thread to one CPU.
pub fn pin_to(cpu: usize) -> io::Result<()> {
    // SAFETY: all zeros is the empty set.
    let mut set: libc::cpu_set_t = unsafe { zeroed() };
    if cpu >= size_of_val(&set) * 8 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: the CPU was checked against the size of the set.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the set outlives the call, and the size is its own; 0 means the calling thread.
    match unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use crate::{Lab, privilege::is_root_or_skip};

    const EACH: u32 = 500_000;

    #[test]
    fn two_cpus_send_at_once_and_what_arrives_is_counted() {
        if !is_root_or_skip("lab::two_cpus_send_at_once_and_what_arrives_is_counted") {
            return;
        }
        let lab = Lab::quiet().unwrap();
        lab.agent.set_offloads(&["gro"], true).unwrap();
        let frame = lab
            .peer
            .frame_v4(&lab.agent)
            .udp(1000, 53, &[0; 18])
            .unwrap();
        let generator = lab.peer.generator().unwrap();
        let cpus = thread::available_parallelism().unwrap().get().min(2);
        thread::scope(|scope| {
            for cpu in 0..cpus {
                let (generator, frame) = (&generator, &frame);
                scope.spawn(move || generator.send(frame, EACH, Some(cpu)).unwrap());
            }
        });
        let received = lab.agent.counters().unwrap();
        let sent = u64::from(EACH) * cpus as u64;
        assert!(
            received.rx_packets > sent / 2 && received.rx_packets <= sent,
            "{received:?}"
        );
        assert_eq!(received.rx_bytes, received.rx_packets * 60);
    }
}
