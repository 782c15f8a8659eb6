//! `Bytes` that keep a guard alive until the last slice drops.

use bytes::Bytes;

/// The same bytes. `guard` is dropped with their last slice.
pub fn with_guard<T: Send + 'static>(bytes: Bytes, guard: T) -> Bytes {
    Bytes::from_owner(GuardedBytes {
        bytes,
        _guard: guard,
    })
}

struct GuardedBytes<T> {
    bytes: Bytes,
    _guard: T,
}

impl<T> AsRef<[u8]> for GuardedBytes<T> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}
