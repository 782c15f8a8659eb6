//! The measuring tools of the benches.
//!
//! A [`profile`] is a set of flows, as the entries that a scan drained or as [`frames`] for the parser. [`user_space`]
//! processes the entries as the agent does after a drain, and [`kernel_table`] holds them in the kernel before it.
//! [`heap`] and [`resident`] count memory, [`stage`] measures the cost per flow, [`sample`] runs one case once, and
//! [`report`] turns the samples of several rounds into figures. The [`live`] benches send real packets and compare the
//! agent with [`capture`], the approach that it replaces. `benches/` measures the stages of the flow path with
//! criterion.

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

/// Prints the error chain on stderr.
pub fn exit_code(result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
