//! Names BPF programs that other processes have loaded.

use anyhow::{Context as _, Result};
use aya::programs::loaded_programs;

/// The name of a program, which the kernel truncates to 15 bytes. Asking takes `CAP_SYS_ADMIN`.
pub fn name(id: u32) -> Result<String> {
    let mut refusal = None;
    for program in loaded_programs() {
        match program {
            Ok(program) if program.id() == id => {
                let name = program.name_as_str().unwrap_or_default();
                return Ok(name.to_owned());
            }
            Ok(_) => {}
            // Another program may end at any time.
            Err(error) => refusal = Some(error),
        }
    }
    let what = || format!("ask for the BPF program {id}");
    match refusal {
        Some(error) => Err(error).with_context(what),
        None => Err(anyhow::anyhow!("it is gone")).with_context(what),
    }
}
