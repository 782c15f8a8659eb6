//! The process and the system it runs on: clocks, local time, limited logging, the service manager's socket and its store
//! of file descriptors, files that change while they are used, files in memory, memory, open files, and threads that give
//! way.
//!
//! May depend on: no other crate of the agent.

pub mod background;
pub mod clock;
pub mod fd_store;
pub mod local_time;
pub mod log_limit;
pub mod memory_file;
pub mod notify_socket;
pub mod open_files;
pub mod own_file;
pub mod process_memory;
pub mod regular_file;
