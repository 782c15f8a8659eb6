//! Programs at tracepoints whose arguments the verifier checks with the kernel's types (BTF).

use std::os::fd::{AsFd as _, BorrowedFd};

use anyhow::{Context as _, Result};
use aya::{
    Btf, Ebpf,
    programs::{BtfTracePoint, tp_btf::BtfTracePointLink},
};

use super::{refusal, run_times::RunTimes};

/// Loads the program with the tracepoint's name without attaching it.
pub fn load<'a>(programs: &'a mut Ebpf, name: &str) -> Result<&'a mut BtfTracePoint> {
    let program = programs.program_mut(name);
    let program = program.with_context(|| format!("the object has no program {name}"))?;
    let program: &mut BtfTracePoint = program.try_into().context("a program of a tracepoint")?;
    // aya's copy of the kernel's types takes some 50 MiB until this function returns.
    let types = Btf::from_sys_fs().context("read the kernel's type information (BTF)")?;
    program
        .load(name, &types)
        .map_err(|error| refusal::explain(name, error))?;
    Ok(program)
}

/// Attaches a loaded program until the link is dropped.
pub fn attach(
    program: &mut BtfTracePoint,
    name: &str,
    run_times: &RunTimes,
) -> Result<BtfTracePointLink> {
    let link = program.attach();
    let link = link.with_context(|| format!("attach {name}"))?;
    run_times
        .watch(name, descriptor(program)?)
        .context("duplicate a program's descriptor")?;
    program.take_link(link).context("keep the program attached")
}

pub fn descriptor(program: &BtfTracePoint) -> Result<BorrowedFd<'_>> {
    let fd = program.fd().context("a loaded program has a descriptor")?;
    Ok(fd.as_fd())
}
