//! Prepares the clients' programs from what `cargo xtask setup` has installed, or skips the test and says
//! what is missing.

use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use lab::privilege::skip;

pub const PROTO_FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/proto");
const PROTO: &str = "flow/v1/flow.proto";

pub const GRPCURL_OPTIONS: [&str; 5] =
    ["-plaintext", "-import-path", PROTO_FOLDER, "-proto", PROTO];

const SET_UP: &str = "cargo xtask setup installs it or says why it cannot";

pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/agent/clients")
}

pub fn python_folder() -> PathBuf {
    folder().join("python")
}

/// A Python with grpcio, and the descriptors of flow.proto's messages for it.
pub fn python_or_skip(test: &str, directory: &Path) -> Option<(PathBuf, PathBuf)> {
    python_with_or_skip(test, PROTO, Path::new(PROTO_FOLDER), directory)
}

/// The same with another protocol, from this folder.
pub fn python_with_or_skip(
    test: &str,
    proto: &str,
    from: &Path,
    directory: &Path,
) -> Option<(PathBuf, PathBuf)> {
    let python = installed("clients/python/bin/python");
    let imports = ["-c", "import grpc, google.protobuf"];
    let Some(python) = python.filter(|python| succeeds(Command::new(python).args(imports))) else {
        skip(test, &format!("no Python with grpcio; {SET_UP}"));
        return None;
    };
    let descriptors = descriptors_or_skip(test, proto, from, directory)?;
    Some((python, descriptors))
}

fn descriptors_or_skip(test: &str, proto: &str, from: &Path, directory: &Path) -> Option<PathBuf> {
    if !succeeds(Command::new("protoc").arg("--version")) {
        skip(test, &format!("no protoc; {SET_UP}"));
        return None;
    }
    let descriptors = directory.join("descriptors");
    let out = option("--descriptor_set_out=", &descriptors);
    protoc(proto, from, &[&out, "--include_imports".as_ref()]);
    Some(descriptors)
}

/// The Python of this environment, if it can import these modules. `package` is what lacks otherwise.
fn python_importing_or_skip(
    test: &str,
    environment: &str,
    modules: &str,
    package: &str,
) -> Option<PathBuf> {
    let python = installed(&format!("{environment}/bin/python"));
    let import = format!("import {modules}");
    let imports = ["-c", &import];
    let python = python.filter(|python| succeeds(Command::new(python).args(imports)));
    if python.is_none() {
        skip(test, &format!("no Python with {package}; {SET_UP}"));
    }
    python
}

/// A Python with grpcio and its generator.
pub fn python_with_tools_or_skip(test: &str) -> Option<PathBuf> {
    python_importing_or_skip(
        test,
        "clients/python",
        "grpc, grpc_tools.protoc",
        "grpcio-tools",
    )
}

/// A Python with DuckDB.
pub fn duckdb_or_skip(test: &str) -> Option<PathBuf> {
    python_importing_or_skip(test, "clients/python", "duckdb", "duckdb")
}

/// A Python with jsonschema.
pub fn json_schema_or_skip(test: &str) -> Option<PathBuf> {
    python_importing_or_skip(test, "clients/python", "jsonschema", "jsonschema")
}

/// A Python with ClickHouse's engine.
pub fn chdb_or_skip(test: &str) -> Option<PathBuf> {
    python_importing_or_skip(test, "clients/chdb", "chdb.session", "chdb-core")
}

/// The folder with a broker of Kafka, and a Python with a client of it and the descriptors of flow.proto's messages.
pub fn kafka_or_skip(test: &str, directory: &Path) -> Option<(PathBuf, PathBuf, PathBuf)> {
    let python = installed("clients/kafka-client/bin/python");
    let imports = ["-c", "import confluent_kafka, grpc_tools.protoc"];
    let python = python.filter(|python| succeeds(Command::new(python).args(imports)));
    let Some(python) = python else {
        skip(test, &format!("no Python with confluent-kafka; {SET_UP}"));
        return None;
    };
    let descriptors = descriptors_or_skip(test, PROTO, Path::new(PROTO_FOLDER), directory)?;
    let jars = installed("clients/kafka/jars");
    let jars = jars.filter(|_| succeeds(Command::new("java").arg("--version")));
    let Some(jars) = jars else {
        skip(test, &format!("no broker of Kafka; {SET_UP}"));
        return None;
    };
    Some((jars, python, descriptors))
}

/// A Python with pandas.
pub fn pandas_or_skip(test: &str) -> Option<PathBuf> {
    let python = installed("clients/pandas/bin/python");
    let imports = ["-c", "import pandas, pyarrow"];
    let python = python.filter(|python| succeeds(Command::new(python).args(imports)));
    if python.is_none() {
        skip(
            test,
            "no Python with pandas; cargo xtask test-consumers installs it or says why it cannot",
        );
    }
    python
}

/// The consumer in Go, compiled.
pub fn go_consumer_or_skip(test: &str) -> Option<PathBuf> {
    let observe = installed("clients/go-consumer/observe");
    if observe.is_none() {
        skip(
            test,
            "no compiled consumer in Go; cargo xtask test-consumers makes it",
        );
    }
    observe
}

/// The C++ client, compiled into the directory against Debian's gRPC.
pub fn cpp_or_skip(test: &str, directory: &Path) -> Option<PathBuf> {
    let plugin = Path::new("/usr/bin/grpc_cpp_plugin");
    let libraries = ["grpc++", "protobuf"];
    let mut flags = Command::new("pkg-config");
    flags.args(["--cflags", "--libs"]).args(libraries);
    let flags = flags.output().ok().filter(|flags| flags.status.success());
    let (Some(flags), true) = (flags, plugin.is_file()) else {
        skip(test, &format!("no gRPC for C++; {SET_UP}"));
        return None;
    };
    let from = Path::new(PROTO_FOLDER);
    let options: [&OsStr; 3] = [
        &option("--cpp_out=", directory),
        &option("--grpc_out=", directory),
        &option("--plugin=protoc-gen-grpc=", plugin),
    ];
    protoc(PROTO, from, &options);
    let program = directory.join("observe");
    let flags = String::from_utf8(flags.stdout).unwrap();
    let mut compiler = Command::new("c++");
    compiler
        .args(["-std=c++17", "-I", "."])
        .arg(folder().join("cpp/observe.cc"))
        .args(["flow/v1/flow.pb.cc", "flow/v1/flow.grpc.pb.cc"])
        .args(flags.split_whitespace())
        .arg("-o")
        .arg(&program)
        .current_dir(directory);
    assert!(succeeds(&mut compiler), "the C++ client does not compile");
    Some(program)
}

pub fn grpcurl_or_skip(test: &str) -> Option<PathBuf> {
    let grpcurl = installed("clients/grpcurl/grpcurl");
    if grpcurl.is_none() {
        skip(test, &format!("no grpcurl; {SET_UP}"));
    }
    grpcurl
}

/// The command `buf`.
pub fn buf_or_skip(test: &str) -> Option<PathBuf> {
    let buf = installed("clients/buf/node_modules/.bin/buf");
    if buf.is_none() {
        skip(test, &format!("no buf; {SET_UP}"));
    }
    buf
}

/// `prometheus` and `promtool`.
pub fn prometheus_or_skip(test: &str) -> Option<[PathBuf; 2]> {
    both_or_skip(test, "prometheus", ["prometheus", "promtool"])
}

/// `nfcapd` and `nfdump`.
pub fn nfdump_or_skip(test: &str) -> Option<[PathBuf; 2]> {
    both_or_skip(test, "nfdump", ["nfcapd", "nfdump"])
}

pub fn nfacctd_or_skip(test: &str) -> Option<PathBuf> {
    let nfacctd = installed("clients/pmacct/usr/sbin/nfacctd");
    if nfacctd.is_none() {
        skip(test, &format!("no pmacct; {SET_UP}"));
    }
    nfacctd
}

pub fn goflow2_or_skip(test: &str) -> Option<PathBuf> {
    let goflow2 = installed("clients/goflow2/goflow2");
    if goflow2.is_none() {
        skip(test, &format!("no goflow2; {SET_UP}"));
    }
    goflow2
}

/// A Python with the package netflow.
pub fn netflow_or_skip(test: &str) -> Option<PathBuf> {
    python_importing_or_skip(test, "clients/netflow", "netflow", "netflow")
}

/// The program that reads with the crate `netflow_parser`.
pub fn netflow_parser_or_skip(test: &str) -> Option<PathBuf> {
    let parser = installed("clients/netflow-parser/target/debug/netflow-parser");
    if parser.is_none() {
        skip(test, &format!("no program with netflow_parser; {SET_UP}"));
    }
    parser
}

/// An OpenTelemetry Collector.
pub fn collector_or_skip(test: &str) -> Option<PathBuf> {
    let collector = installed("clients/otelcol/built/otelcol");
    if collector.is_none() {
        skip(
            test,
            "no OpenTelemetry Collector; cargo xtask test-consumers installs it or says why it cannot",
        );
    }
    collector
}

pub fn has_ipfix_dump_or_skip(test: &str) -> bool {
    let is_there = succeeds(
        Command::new("ipfixDump")
            .arg("--version")
            .stderr(Stdio::null()),
    );
    if !is_there {
        skip(test, &format!("no ipfixDump; {SET_UP}"));
    }
    is_there
}

/// Two programs of an unpacked package.
fn both_or_skip(test: &str, package: &str, names: [&str; 2]) -> Option<[PathBuf; 2]> {
    let [first, second] = names.map(|name| installed(&format!("clients/{package}/usr/bin/{name}")));
    let both = first.zip(second).map(<[PathBuf; 2]>::from);
    if both.is_none() {
        skip(test, &format!("no {package}; {SET_UP}"));
    }
    both
}

/// A path in the cache of the user who built the tests, which is not root's, who runs them.
fn installed(path: &str) -> Option<PathBuf> {
    let path = Path::new(option_env!("FLOW_AGENT_CACHE")?).join(path);
    path.exists().then_some(path)
}

fn protoc(proto: &str, from: &Path, options: &[&OsStr]) {
    let mut protoc = Command::new("protoc");
    protoc.arg("-I").arg(from).args(options).arg(proto);
    assert!(succeeds(&mut protoc), "protoc refuses {proto}");
}

fn option(name: &str, path: &Path) -> OsString {
    let mut option = OsString::from(name);
    option.push(path);
    option
}

fn succeeds(command: &mut Command) -> bool {
    command
        .stdout(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
