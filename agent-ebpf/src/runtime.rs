//! The panic handler and the licence that every eBPF object needs.

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // No code path reaches this: the verifier refuses programs that could.
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
