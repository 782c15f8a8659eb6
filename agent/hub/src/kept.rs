//! `Bytes` that keep a guard alive until the last slice drops.

use bytes::Bytes;

/// The same bytes. `kept` is dropped with their last slice.
pub fn keeping<T: Send + 'static>(bytes: Bytes, kept: T) -> Bytes {
    Bytes::from_owner(Kept { bytes, _kept: kept })
}

struct Kept<T> {
    bytes: Bytes,
    _kept: T,
}

impl<T> AsRef<[u8]> for Kept<T> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}
