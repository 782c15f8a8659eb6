//! Small things that several crates need and that belong to no subject: clocks, limited logging, files that change while they are
//! used, the memory and the open files of this process, and errors that point at a place in what the user wrote.
//!
//! May depend on: no other crate of the agent.

pub mod background;
pub mod clock;
pub mod fault;
pub mod log_limit;
pub mod open_files;
pub mod own_file;
pub mod process_memory;
pub mod regular_file;
pub mod similar;
