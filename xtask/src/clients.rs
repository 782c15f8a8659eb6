//! Installs the third-party programs with which the tests read an agent's data: gRPC clients, Prometheus, IPFIX
//! collectors, a Kafka broker, ClickHouse's engine, and buf for the protocol itself. Also installs the exporters that a
//! bench compares the agent with. Programs that Debian lacks, or whose packages would start a service, go into the
//! user's cache. If a client cannot be installed, a message says so and its test skips itself.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    apt::{self, Apt},
    ebpf_toolchain,
    workspace::{has_command, root, run},
};

mod broker;

const GRPCURL: &str = "github.com/fullstorydev/grpcurl/cmd/grpcurl";
const GRPCURL_VERSION: &str = "v1.9.3";
const GOFLOW2: &str = "github.com/netsampler/goflow2/v2/cmd/goflow2";
const GOFLOW2_VERSION: &str = "v2.2.6";

/// The version of all its components.
const COLLECTOR_VERSION: &str = "v0.120.0";
const COLLECTOR_FILES: &str =
    "github.com/open-telemetry/opentelemetry-collector-contrib/exporter/fileexporter";
/// From the Python package index. It reads an agent's Parquet files.
const DUCKDB: &str = "duckdb==2.0.0";
/// It compares JSON Lines with their schema.
const JSON_SCHEMA: &str = "jsonschema==4.25.1";
/// ClickHouse's engine, without its dependencies pandas and pyarrow: they take several hundred megabytes, and it needs
/// them only for their own types.
const CHDB: [&str; 2] = ["--no-deps", "chdb-core==26.9.0"];
/// An IPFIX reader.
const NETFLOW: &str = "netflow==0.12.2";
/// Another IPFIX reader, a Rust crate.
const NETFLOW_PARSER: &str = "=1.0.6";
const PANDAS: [&str; 2] = ["pandas==3.1.1", "pyarrow==26.0.1"];

const CPP_PACKAGES: &[&str] = &[
    "g++",
    "libgrpc++-dev",
    "libprotobuf-dev",
    "pkg-config",
    "protobuf-compiler",
    "protobuf-compiler-grpc",
];

/// Written last, with the versions that were installed.
const MARK: &str = "installed";

pub fn set_up() {
    let clients: [(&str, Install); 15] = [
        ("gRPC for C++", cpp),
        ("gRPC and DuckDB for Python", python),
        ("grpcurl", grpcurl),
        ("Prometheus", prometheus),
        ("nfdump", nfdump),
        ("pmacct", pmacct),
        ("ipfixDump", ipfix_dump),
        ("goflow2", goflow2),
        ("netflow for Python", netflow),
        ("netflow_parser", netflow_parser),
        ("buf", buf),
        ("the consumer in Go", go_consumer),
        ("a broker of Kafka", broker::install),
        ("Kafka for Python", broker::install_client),
        ("ClickHouse's engine for Python", chdb),
    ];
    install(&clients);
}

/// Installs the clients that take minutes, for `cargo xtask test-consumers`.
pub fn set_up_slow() {
    let clients: [(&str, Install); 2] = [
        ("the OpenTelemetry Collector", collector),
        ("pandas", pandas),
    ];
    install(&clients);
}

/// Installs the exporters that `cargo xtask bench peers` measures beside the agent. Returns the folder in which each
/// package is unpacked under its name.
pub fn set_up_peers() -> Result<PathBuf> {
    let apt = Apt::find();
    for package in ["softflowd", "pmacct"] {
        let why = "the agent is measured beside it";
        unpack(apt.as_ref(), package, why, Links::Libraries)
            .with_context(|| format!("install {package}, without which there is no bench peers"))?;
    }
    folder("")
}

type Install = fn(Option<&Apt>) -> Result<()>;

fn install(clients: &[(&str, Install)]) {
    let apt = Apt::find();
    for (name, install) in clients {
        if let Err(error) = install(apt.as_ref()) {
            eprintln!("setup: without {name} its test is skipped: {error:#}");
        }
    }
}

/// Also installs `protoc`, which the Python client needs too.
fn cpp(apt: Option<&Apt>) -> Result<()> {
    let has_libraries = || {
        let mut pkg_config = Command::new("pkg-config");
        pkg_config.args(["--exists", "grpc++", "protobuf"]);
        pkg_config.status().is_ok_and(|status| status.success())
    };
    let commands = ["pkg-config", "c++", "protoc", "grpc_cpp_plugin"];
    if commands.into_iter().all(has_command) && has_libraries() {
        return Ok(());
    }
    let apt = apt.context("there is no apt, or no way to be root for it")?;
    apt.install(CPP_PACKAGES, "a C++ client observes an agent")
}

fn python(apt: Option<&Apt>) -> Result<()> {
    let wanted = example_requirements()?;
    let wanted = wanted.split_whitespace().chain([DUCKDB, JSON_SCHEMA]);
    python_packages(apt, "python", &wanted.collect::<Vec<_>>())
}

/// The packages that the Python example consumers need.
fn example_requirements() -> Result<String> {
    let requirements = root().join("deploy/consumers/python/requirements.txt");
    fs::read_to_string(&requirements).with_context(|| format!("read {}", requirements.display()))
}

/// Downloads 160 MB, which take 530 MB on disk.
fn chdb(apt: Option<&Apt>) -> Result<()> {
    python_packages(apt, "chdb", &CHDB)
}

/// Takes several hundred megabytes.
fn pandas(apt: Option<&Apt>) -> Result<()> {
    python_packages(apt, "pandas", &PANDAS)
}

/// A Python environment with these packages.
fn python_packages(apt: Option<&Apt>, name: &str, packages: &[&str]) -> Result<()> {
    let folder = folder(name)?;
    let wanted = packages.join(" ");
    if is_marked(&folder, &wanted) {
        return Ok(());
    }
    let has_venv = || {
        let mut ensurepip = Command::new("python3");
        ensurepip.args(["-m", "ensurepip", "--version"]);
        let output = ensurepip.output();
        output.is_ok_and(|output| output.status.success())
    };
    if !has_venv() {
        let apt = apt.context("there is no python3 with venv")?;
        apt.install(
            &["python3-venv"],
            "Python programs read what an agent sends",
        )?;
    }
    eprintln!("setup: installing {wanted} (Python programs read what an agent sends)");
    run(Command::new("python3")
        .args(["-m", "venv", "--clear"])
        .arg(&folder))?;
    run(Command::new(folder.join("bin/pip"))
        .args(["install", "--quiet", "--disable-pip-version-check"])
        .args(packages))?;
    mark(&folder, &wanted)
}

fn grpcurl(apt: Option<&Apt>) -> Result<()> {
    let what = format!("{GRPCURL}@{GRPCURL_VERSION}");
    compiled_by_go(apt, "grpcurl", &what, 21, "it observes an agent")
}

fn goflow2(apt: Option<&Apt>) -> Result<()> {
    let what = format!("{GOFLOW2}@{GOFLOW2_VERSION}");
    compiled_by_go(apt, "goflow2", &what, 23, "it reads an agent's IPFIX")
}

fn netflow(apt: Option<&Apt>) -> Result<()> {
    python_packages(apt, "netflow", &[NETFLOW])
}

/// Builds a test program with a crate that nothing else needs.
fn netflow_parser(_: Option<&Apt>) -> Result<()> {
    let source = root().join("agent/tests/agent/clients/rust/netflow_parser.rs");
    let program =
        fs::read_to_string(&source).with_context(|| format!("read {}", source.display()))?;
    let manifest = format!(
        "[package]\n\
         name = \"netflow-parser\"\n\
         version = \"0.0.0\"\n\
         edition = \"2024\"\n\
         [workspace]\n\
         [dependencies]\n\
         netflow_parser = \"{NETFLOW_PARSER}\"\n"
    );
    let what = format!("{manifest}{program}");
    let folder = folder("netflow-parser")?;
    if is_marked(&folder, &what) {
        return Ok(());
    }
    eprintln!("setup: compiling netflow_parser {NETFLOW_PARSER} (it reads an agent's IPFIX)");
    let sources = folder.join("src");
    fs::create_dir_all(&sources).with_context(|| format!("make {}", sources.display()))?;
    for (file, text) in [
        (folder.join("Cargo.toml"), manifest),
        (sources.join("main.rs"), program),
    ] {
        fs::write(&file, text).with_context(|| format!("write {}", file.display()))?;
    }
    // The environment that cargo sets for an xtask is about our workspace, not this one.
    run(Command::new("cargo")
        .args(["build", "--quiet", "--manifest-path"])
        .arg(folder.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(folder.join("target"))
        .current_dir(&folder))?;
    mark(&folder, &what)
}

/// Generates and compiles the consumer in `deploy/consumers/go`, by the commands in its source.
fn go_consumer(apt: Option<&Apt>) -> Result<()> {
    const PLUGINS: [&str; 2] = [
        "google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.11",
        "google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.5.1",
    ];
    let (source, proto) = (
        root().join("deploy/consumers/go"),
        root().join("agent/proto"),
    );
    let mut what = PLUGINS.join(" ");
    let files = ["main.go", "go.mod", "go.sum"].map(|name| source.join(name));
    for file in files.iter().chain([&proto.join("flow/v1/flow.proto")]) {
        let text = fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
        what.push_str(&text);
    }
    let folder = folder("go-consumer")?;
    if is_marked(&folder, &what) {
        return Ok(());
    }
    for plugin in PLUGINS {
        compiled_by_go(apt, "go-consumer", plugin, 24, "it generates a consumer")?;
    }
    for file in files {
        let name = file.file_name().unwrap_or_default();
        let to = folder.join(name);
        fs::copy(&file, &to).with_context(|| format!("write {}", to.display()))?;
    }
    run(Command::new("protoc")
        .arg("-I")
        .arg(proto)
        .args(["--plugin=protoc-gen-go", "--plugin=protoc-gen-go-grpc"])
        .args(["--go_out=.", "--go_opt=module=observe"])
        .args(["--go-grpc_out=.", "--go-grpc_opt=module=observe"])
        .arg("--go_opt=Mflow/v1/flow.proto=observe/flowv1")
        .arg("--go-grpc_opt=Mflow/v1/flow.proto=observe/flowv1")
        .arg("flow/v1/flow.proto")
        .current_dir(&folder))?;
    run(Command::new("go")
        .args(["build", "-o", "observe", "."])
        .current_dir(&folder)
        .env("CGO_ENABLED", "0")
        .env("GOTOOLCHAIN", "local"))?;
    mark(&folder, &what)
}

/// Compiles a Collector with a receiver and a file exporter, with its own builder, in some minutes.
fn collector(apt: Option<&Apt>) -> Result<()> {
    let builder = format!("go.opentelemetry.io/collector/cmd/builder@{COLLECTOR_VERSION}");
    let manifest = format!(
        "dist:\n  \
           name: otelcol\n  \
           module: flow-agent/otelcol\n  \
           output_path: built\n\
         receivers:\n  \
           - gomod: go.opentelemetry.io/collector/receiver/otlpreceiver {COLLECTOR_VERSION}\n\
         exporters:\n  \
           - gomod: {COLLECTOR_FILES} {COLLECTOR_VERSION}\n"
    );
    let folder = folder("otelcol")?;
    if is_marked(&folder, &manifest) {
        return Ok(());
    }
    compiled_by_go(apt, "otelcol", &builder, 23, "it reads an agent's OTLP")?;
    let file = folder.join("manifest.yaml");
    fs::write(&file, &manifest).with_context(|| format!("write {}", file.display()))?;
    run(Command::new(folder.join("builder"))
        .args(["--config", "manifest.yaml"])
        .current_dir(&folder)
        .env("CGO_ENABLED", "0")
        .env("GOTOOLCHAIN", "local"))?;
    mark(&folder, &manifest)
}

/// `minor` is the minor version of Go that the program's `go.mod` requires.
fn compiled_by_go(apt: Option<&Apt>, name: &str, what: &str, minor: u32, why: &str) -> Result<()> {
    let folder = folder(name)?;
    if is_marked(&folder, what) {
        return Ok(());
    }
    install_go(apt, name, minor)?;
    let (_, version) = what.split_once('@').unwrap_or_default();
    eprintln!("setup: compiling {name} {version} ({why})");
    run(Command::new("go")
        .args(["install", what])
        .env("GOBIN", &folder)
        .env("CGO_ENABLED", "0")
        // Keep Go from downloading another toolchain.
        .env("GOTOOLCHAIN", "local"))?;
    mark(&folder, what)
}

/// Debian has no package for it, and npm's dependencies are too much for one test.
fn buf(_: Option<&Apt>) -> Result<()> {
    const PACKAGE: &str = "@bufbuild/buf@1.75.0";
    let folder = folder("buf")?;
    if is_marked(&folder, PACKAGE) {
        return Ok(());
    }
    if !has_command("npm") {
        bail!("there is no npm");
    }
    eprintln!("setup: installing {PACKAGE} (it checks flow.proto)");
    run(Command::new("npm")
        .args(["install", "--silent", "--no-fund", "--no-audit", "--prefix"])
        .arg(&folder)
        .arg(PACKAGE))?;
    mark(&folder, PACKAGE)
}

fn prometheus(apt: Option<&Apt>) -> Result<()> {
    unpack(apt, "prometheus", "it scrapes an agent", Links::Nothing)
}

fn nfdump(apt: Option<&Apt>) -> Result<()> {
    unpack(apt, "nfdump", "it reads an agent's IPFIX", Links::Libraries)
}

fn pmacct(apt: Option<&Apt>) -> Result<()> {
    unpack(apt, "pmacct", "it reads an agent's IPFIX", Links::Libraries)
}

fn ipfix_dump(apt: Option<&Apt>) -> Result<()> {
    if has_command("ipfixDump") {
        return Ok(());
    }
    let apt = apt.context("there is no apt, or no way to be root for it")?;
    apt.install(&["libfixbuf-tools"], "it reads an agent's IPFIX")
}

/// How the programs of a package are linked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Links {
    Nothing,
    Libraries,
}

/// Unpacks the package without installing it, since it would start a server on this machine. Installs its libraries.
fn unpack(apt: Option<&Apt>, package: &str, why: &str, links: Links) -> Result<()> {
    let folder = folder(package)?;
    if is_marked(&folder, package) {
        return Ok(());
    }
    let apt = apt.context("there is no apt, or no way to be root for it")?;
    let version = apt.candidate(package)?;
    let version = version.context("apt has no package of it")?;
    eprintln!("setup: unpacking {package} {version} ({why})");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    let archive = apt::download(
        &mut Command::new("apt-get"),
        &format!("{package}={version}"),
        &folder,
    )?;
    run(Command::new("dpkg-deb")
        .arg("--extract")
        .args([&archive, &folder]))?;
    if links == Links::Libraries {
        apt.install_what_needs(&archive)?;
    }
    fs::remove_file(&archive).with_context(|| format!("remove {}", archive.display()))?;
    mark(&folder, package)
}

/// Installs Debian's Go unless the machine has one that can compile this program.
fn install_go(apt: Option<&Apt>, program: &str, minor: u32) -> Result<()> {
    let mut version = Command::new("go");
    version
        .args(["env", "GOVERSION"])
        .env("GOTOOLCHAIN", "local");
    let found = version.output().ok().map(|output| output.stdout);
    let found = found.map(|version| String::from_utf8_lossy(&version).trim().to_owned());
    let is_enough = |version: &str| is_go_enough(version, minor);
    if let Some(found) = &found
        && found.strip_prefix("go").is_some_and(is_enough)
    {
        return Ok(());
    }
    let candidate = match apt {
        Some(apt) => apt.candidate("golang-go")?,
        None => None,
    };
    let upstream = candidate
        .as_deref()
        .map(|version| version.split_once(':').map_or(version, |(_, rest)| rest));
    match (apt, upstream) {
        (Some(apt), Some(version)) if is_enough(version) => {
            apt.install(&["golang-go"], &format!("it compiles {program}"))
        }
        _ => bail!(
            "compiling it needs Go 1.{minor} or later; the PATH has {}, apt has {}",
            found.as_deref().unwrap_or("none"),
            upstream.unwrap_or("none")
        ),
    }
}

/// Takes versions such as `1.26.8`, `1.19~1` and `2.0`.
fn is_go_enough(version: &str, minor: u32) -> bool {
    let mut numbers = version.split(|letter: char| !letter.is_ascii_digit());
    let mut number = || numbers.next().and_then(|digits| digits.parse::<u32>().ok());
    let found = (number().unwrap_or(0), number().unwrap_or(0));
    found >= (1, minor)
}

fn folder(name: &str) -> Result<PathBuf> {
    let cache = ebpf_toolchain::cache_root().context("neither HOME nor XDG_CACHE_HOME is set")?;
    Ok(cache.join("clients").join(name))
}

fn is_marked(folder: &Path, what: &str) -> bool {
    fs::read_to_string(folder.join(MARK)).is_ok_and(|found| found == what)
}

fn mark(folder: &Path, what: &str) -> Result<()> {
    let mark = folder.join(MARK);
    fs::write(&mark, what).with_context(|| format!("write {}", mark.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_go_that_is_too_old_is_told_by_its_version() {
        for version in ["1.21", "1.26.8", "1.22~3", "1.24rc1", "2.0"] {
            assert!(is_go_enough(version, 21), "{version}");
        }
        for version in ["1.19~1", "1.20.14", "0.9", "", "devel"] {
            assert!(!is_go_enough(version, 21), "{version}");
        }
    }
}
