//! Programs that the kernel runs over all that it has of a kind, such as open files.

use std::{
    fs::File,
    io::{self, Read as _},
};

use anyhow::{Context as _, Result};
use aya::{Btf, Ebpf, programs::Iter};

use super::refusal;

/// Loads a program that goes over what the kernel calls `of`, and does not attach it.
pub fn load<'a>(programs: &'a mut Ebpf, name: &str, of: &str) -> Result<&'a mut Iter> {
    let program = programs.program_mut(name);
    let program = program.with_context(|| format!("the object has no program {name}"))?;
    let program: &mut Iter = program.try_into().context("an iterator")?;
    // What the library makes of the kernel's types takes some 50 MiB, until this function returns.
    let types = Btf::from_sys_fs().context("read the kernel's type information (BTF)")?;
    program
        .load(of, &types)
        .map_err(|error| refusal::explain(name, error))?;
    Ok(program)
}

/// The program writes nothing, so there is nothing to read.
pub fn run_to_the_end(mut all: File) -> io::Result<()> {
    let mut nothing = [0; 8];
    loop {
        match all.read(&mut nothing) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            // It has looked at a million files without a word, and goes on from there.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) => {}
            Err(error) => return Err(error),
        }
    }
}
