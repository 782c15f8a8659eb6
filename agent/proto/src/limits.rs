//! The longest names and lists that an agent puts into a batch, and that a collector accepts.

/// The longest cgroup path that is kept. The owner of a cgroup can nest directories in it without limit.
pub const MAX_CGROUP_PATH_BYTES: usize = 1024;
/// The longest process name. The kernel's has at most 15 bytes (`TASK_COMM_LEN` with the final zero); each
/// byte that is not UTF-8 takes three bytes.
pub const MAX_PROCESS_NAME_BYTES: usize = 45;
/// The longest host name. DNS names have at most 253 bytes; a name with escaped bytes may be longer.
pub const MAX_HOST_NAME_BYTES: usize = 255;
/// The most addresses that are read from one DNS message. A datagram of 1,472 bytes has room for 90.
pub const MAX_DNS_ANSWERS: usize = 128;
