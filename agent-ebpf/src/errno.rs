//! The kernel's errors, as helpers return them.

pub const E2BIG: i32 = -7;
pub const ENOMEM: i32 = -12;
pub const EBUSY: i32 = -16;
pub const EEXIST: i32 = -17;
pub const EDEADLK: i32 = -35;
pub const ETIMEDOUT: i32 = -110;
