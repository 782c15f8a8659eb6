//! Reads through a block of memory to evict the CPU caches.

use aya_ebpf::{Global, btf_maps::Array, macros::btf_map};

const LINES_OF_PAGE: usize = 64;
/// 4 MiB, the bound that the verifier needs for the loop.
const MOST_PAGES: u32 = 1024;

/// A cache line.
#[repr(C, align(64))]
struct Line(u64);

/// Userspace sets the size.
#[btf_map]
static WALKED: Array<[Line; LINES_OF_PAGE], 1> = Array::new();

#[unsafe(no_mangle)]
static WALK_PAGES: Global<u32> = Global::new(1);

/// Reads each cache line of the map.
#[inline(always)]
pub fn walk() {
    for page in 0..MOST_PAGES {
        if page >= WALK_PAGES.load() {
            break;
        }
        let Some(page) = WALKED.get_ptr(page) else {
            break;
        };
        let first = page.cast::<Line>();
        for line in 0..LINES_OF_PAGE {
            // SAFETY: the pointer comes from an array lookup, and the line is in the page.
            unsafe { (&raw const (*first.add(line)).0).read_volatile() };
        }
    }
}
