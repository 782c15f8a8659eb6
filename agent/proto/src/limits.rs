//! The highest numbers and the longest names and lists that an agent puts into a batch, and that a collector accepts. The
//! limits of a record's numbers come from `flow.proto`.

include!(concat!(env!("OUT_DIR"), "/limits.rs"));

/// The highest value of a counter that has no limit of its own. Files and databases store 63 bits.
pub const MAX_COUNTER: u64 = i64::MAX as u64;

/// The longest encoded batch: gRPC's default limit. Batches of agents have about 256 KiB.
pub const MAX_BATCH_BYTES: usize = 4 << 20;

/// The longest cgroup path that is kept. The owner of a cgroup can nest directories in it without limit.
pub const MAX_CGROUP_PATH_BYTES: usize = 1024;
/// The longest process name. The kernel's has at most 15 bytes (`TASK_COMM_LEN` with the final zero); each
/// byte that is not UTF-8 takes three bytes.
pub const MAX_PROCESS_NAME_BYTES: usize = 45;
/// The longest host name. DNS names have at most 253 bytes; a name with escaped bytes may be longer.
pub const MAX_HOST_NAME_BYTES: usize = 255;
/// The most addresses that are read from one DNS message. A datagram of 1,472 bytes has room for 90.
pub const MAX_DNS_ANSWERS: usize = 128;
