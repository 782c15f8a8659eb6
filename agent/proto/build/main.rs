//! Generates sources, descriptors and tables in `$OUT_DIR` from `flow/v1/flow.proto`.
//!
//! The parser is protox, so nobody needs `protoc`.

#![expect(
    clippy::print_stdout,
    clippy::wildcard_enum_match_arm,
    reason = "cargo reads it, and most kinds of fields are alike"
)]

use std::{env, fs, path::Path};

use self::catalogue::Catalogue;
use anyhow::{Context as _, Result};
use prost::Message as _;

mod catalogue;
mod code;
mod page;
mod schema;

const PROTO: &str = "flow/v1/flow.proto";

/// `AgentStatus`, `CollectorStatus` and the messages in them.
const SHOWN_AS_JSON: &[&str] = &[
    ".flow.v1.Account",
    ".flow.v1.AgentIdentity",
    ".flow.v1.AgentStatus",
    ".flow.v1.CollectedStream",
    ".flow.v1.CollectorStatus",
    ".flow.v1.ConsumerStatus",
    ".flow.v1.CarriedOver",
    ".flow.v1.Count",
    ".flow.v1.DepartedOutputs",
    ".flow.v1.DnsStatus",
    ".flow.v1.Durations",
    ".flow.v1.HookStatus",
    ".flow.v1.Interface",
    ".flow.v1.InterfaceCounters",
    ".flow.v1.KernelDrops",
    ".flow.v1.NatStatus",
    ".flow.v1.ListenerStatus",
    ".flow.v1.MemoryStatus",
    ".flow.v1.OutputSpoolStatus",
    ".flow.v1.OutputStatus",
    ".flow.v1.OutputTlsStatus",
    ".flow.v1.RecordSum",
    ".flow.v1.ReplicaStatus",
    ".flow.v1.ScanStatus",
    ".flow.v1.ServerStatus",
    ".flow.v1.InterfacesStatus",
    ".flow.v1.Settings",
    ".flow.v1.PairsStatus",
    ".flow.v1.ConversationsStatus",
    ".flow.v1.PathStatus",
    ".flow.v1.StoreStatus",
    ".flow.v1.TableStatus",
    ".flow.v1.TlsStatus",
    ".flow.v1.Traffic",
    ".flow.v1.UncountedInterface",
    ".flow.v1.UnitTraffic",
];
const HOOK: &str = ".flow.v1.HookStatus.hook";
const MODE: &str = ".flow.v1.HookStatus.mode";
const INSTEAD_OF_XDP: &str = ".flow.v1.HookStatus.instead_of_xdp";

/// Writes `flow.v1.bin`, the descriptors for reflection; `flow.v1.rs`, the messages, clients and servers (the agent's
/// own server uses only the messages, since its batches are encoded already); and what comes from the catalogue.
fn main() -> Result<()> {
    let root = env::var_os("CARGO_MANIFEST_DIR").context("cargo names the package")?;
    let root = Path::new(&root);
    for path in ["build", "flow"] {
        println!("cargo::rerun-if-changed={path}");
    }

    let descriptors =
        protox::compile([PROTO], [root]).with_context(|| format!("compile {PROTO}"))?;
    let out = env::var_os("OUT_DIR").context("cargo names a folder for generated files")?;
    let file = Path::new(&out).join("flow.v1.bin");
    fs::write(&file, descriptors.encode_to_vec())
        .with_context(|| format!("write {}", file.display()))?;

    let all = descriptors.file.iter().find(|file| file.name() == PROTO);
    let catalogue = Catalogue::new(all.context("protox returns the file")?)?;
    for (name, content) in [
        ("reader.rs", code::reader(&catalogue)),
        (
            "record.rs",
            code::record(&catalogue) + &code::message(&catalogue),
        ),
        ("writer.rs", code::writer(&catalogue)),
        ("no_end.rs", code::no_end(&catalogue)),
        ("limits.rs", code::limits(&catalogue)),
        ("checks.rs", code::checks(&catalogue)),
        ("columns.rs", code::columns(&catalogue)),
        ("fields.md", page::table(&catalogue)),
        ("flows.sql", page::sql(&catalogue)),
        ("columns.schema.json", schema::columns(&catalogue)),
    ] {
        let file = Path::new(&out).join(name);
        fs::write(&file, content).with_context(|| format!("write {}", file.display()))?;
    }

    let mut config = tonic_prost_build::configure()
        .btree_map(".")
        .bytes(".flow.v1.FlowRecord")
        .bytes(".flow.v1.Endpoint");
    for message in SHOWN_AS_JSON {
        config = config.type_attribute(message, "#[derive(serde::Serialize)]");
    }
    config
        .field_attribute(HOOK, r#"#[serde(serialize_with = "crate::hook_name")]"#)
        .field_attribute(MODE, r#"#[serde(serialize_with = "crate::mode_name")]"#)
        .field_attribute(
            INSTEAD_OF_XDP,
            r#"#[serde(serialize_with = "crate::instead_of_xdp_name")]"#,
        )
        .compile_fds(descriptors)
        .with_context(|| format!("generate code for {PROTO}"))?;
    Ok(())
}
