//! Reads the entries that programs put into a ring buffer.

use anyhow::{Result, ensure};
use aya::{
    Pod,
    maps::{MapData, RingBuf},
};

/// Passes on up to `most` waiting entries in order, including ones that arrive meanwhile. Returns how many there were.
pub fn take<T: Pod>(
    ring: &mut RingBuf<MapData>,
    most: usize,
    mut each: impl FnMut(&T),
) -> Result<usize> {
    const { assert!(align_of::<T>() <= 8) }
    for taken in 0..most {
        let Some(noted) = ring.next() else {
            return Ok(taken);
        };
        ensure!(
            noted.len() == size_of::<T>(),
            "the programs noted {} bytes where {} are one",
            noted.len(),
            size_of::<T>()
        );
        let one = noted.as_ptr().cast::<T>();
        // SAFETY: the entry has the size and alignment of `T`, and any bytes are a valid `T` (`Pod`).
        each(unsafe { &*one });
    }
    Ok(most)
}
