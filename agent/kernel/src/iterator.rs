//! Iterators: programs that the kernel runs over all of its objects of a kind, such as open files.

use std::{
    fs::File,
    io::{self, Read as _},
};

use anyhow::{Context as _, Result};
use aya::{Btf, Ebpf, programs::Iter};

use super::refusal;

/// Loads an iterator over the kernel's target `of` without attaching it.
pub fn load<'a>(programs: &'a mut Ebpf, name: &str, of: &str) -> Result<&'a mut Iter> {
    let program = programs.program_mut(name);
    let program = program.with_context(|| format!("the object has no program {name}"))?;
    let program: &mut Iter = program.try_into().context("an iterator")?;
    // aya's copy of the kernel's types takes some 50 MiB until this function returns.
    let types = Btf::from_sys_fs().context("read the kernel's type information (BTF)")?;
    program
        .load(of, &types)
        .map_err(|error| refusal::explain(name, error))?;
    Ok(program)
}

/// Reads an iterator to its end, so that it runs once. Its program writes nothing, so the data is empty.
pub fn run_to_the_end(mut all: File) -> io::Result<()> {
    let mut nothing = [0; 8];
    loop {
        match all.read(&mut nothing) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            // The kernel stops after a million objects without output; reading again continues there.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) => {}
            Err(error) => return Err(error),
        }
    }
}
