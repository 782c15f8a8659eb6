//! Tells the tests where `cargo xtask setup` has installed what they start. root, who runs them, has another cache.

#[path = "kernel/build/ebpf_toolchain.rs"]
#[expect(dead_code, reason = "only the folder is of interest here")]
mod ebpf_toolchain;

fn main() {
    for name in ["XDG_CACHE_HOME", "HOME"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    if let Some(cache) = ebpf_toolchain::cache_root() {
        println!("cargo::rustc-env=FLOW_AGENT_CACHE={}", cache.display());
    }
}
