//! What the benches measure with.
//!
//! A [`profile`] is a set of flows, as entries that a scan drained and as [`frames`] for the parser.
//! [`user_space`] does with the entries what the agent does after the drain, [`kernel_table`] holds
//! them in the kernel before it. [`heap`] and [`resident`] count memory, [`stage`] says what a flow costs,
//! [`sample`] runs one case once, and [`report`] turns the samples of several rounds into
//! figures. The [`live`] benches send real packets, and hold the agent against [`capture`], which it replaces.
//! `benches/` has the stages of the flow path by criterion.

pub mod capture;
pub mod frames;
pub mod heap;
pub mod kernel_table;
pub mod live;
pub mod profile;
pub mod report;
pub mod resident;
pub mod sample;
pub mod stage;
pub mod user_space;

use std::process::ExitCode;

/// Tells the chain of errors on stderr.
pub fn exit_code(result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
