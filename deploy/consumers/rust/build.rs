//! Generates the client from flow.proto, without protoc.

fn main() -> anyhow::Result<()> {
    println!("cargo::rerun-if-changed=../proto");
    let descriptors = protox::compile(["flow/v1/flow.proto"], ["../proto"])?;
    let client_only = tonic_prost_build::configure().build_server(false);
    Ok(client_only.compile_fds(descriptors)?)
}
