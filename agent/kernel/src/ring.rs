//! Reads what programs put into a ring.

use anyhow::{Result, ensure};
use aya::{
    Pod,
    maps::{MapData, RingBuf},
};

/// Hands on what waits, in its order, `most` at most. Returns how many there were. What comes meanwhile may be among them.
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
        // SAFETY: it has the size of one and its alignment, and any bytes are one (`Pod`).
        each(unsafe { &*one });
    }
    Ok(most)
}
