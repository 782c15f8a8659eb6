//! Apache Kafka brokers in a network namespace. A broker's storage outlives its process, so a test can kill and restart
//! the broker.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use tempfile::TempDir;

use crate::{Namespace, Process, run};

const CONTROLLER: &str = "127.0.0.1:9093";
/// An arbitrary 16 bytes in base64.
const CLUSTER_ID: &str = "4L6g3nShT-eMCtK--X86sw";
/// Suited to a test's few messages. The second option skips the optimizing compiler, which saves startup time.
const JAVA: [&str; 3] = ["-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"];
/// Logs warnings, and the line that says that the broker is ready.
const LOG: [&str; 2] = [
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info",
];
const READY: &str = "Kafka Server started";

pub struct Broker<'a> {
    namespace: &'a Namespace,
    jars: PathBuf,
    node: u16,
    folder: TempDir,
    process: Option<Process>,
    patience: Duration,
}

/// The configuration of a broker.
#[derive(Clone, Debug, Default)]
pub struct BrokerOptions {
    /// The broker's id in the cluster. The first broker, 0 or 1, leads the cluster.
    pub node: u16,
    /// Added to the default settings, or replacing them. Clients use the listener `CLIENT`.
    pub settings: Vec<(String, String)>,
    /// Such as `SCRAM-SHA-256=[name=me,password=secret]`.
    pub scram: Vec<String>,
}

impl<'a> Broker<'a> {
    /// Creates its storage, starts it, and waits until it is ready. `jars` is the folder that contains Kafka.
    pub fn start(
        namespace: &'a Namespace,
        jars: &Path,
        patience: Duration,
        options: &BrokerOptions,
    ) -> Result<Self> {
        let folder = TempDir::with_prefix("flow-agent-").context("make a folder for a broker")?;
        let mut broker = Self {
            namespace,
            jars: jars.to_owned(),
            node: options.node.max(1),
            folder,
            process: None,
            patience,
        };
        let settings = broker.path("server.properties");
        fs::write(&settings, broker.properties(options)).context("write a broker's settings")?;
        let mut format = broker.java("kafka.tools.StorageTool");
        format
            .args(["format", "--cluster-id", CLUSTER_ID, "--config"])
            .arg(&settings);
        for user in &options.scram {
            format.args(["--add-scram", user]);
        }
        run(&mut format).context("make a broker's storage")?;
        broker.start_again()?;
        Ok(broker)
    }

    /// The address for clients in its namespace.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port() + 2)
    }

    /// The address for clients without login and TLS, whatever the settings.
    pub fn plain_address(&self) -> String {
        format!("127.0.0.1:{}", self.port() + 1)
    }

    /// The first broker uses ports 9091 to 9093.
    fn port(&self) -> u16 {
        9080 + 10 * self.node
    }

    /// Runs `kafka-configs` with these arguments.
    pub fn configure(&self, arguments: &[&str]) -> Result<()> {
        let mut command = self.java("kafka.admin.ConfigCommand");
        command.args(["--bootstrap-server", &self.plain_address()]);
        run(command.args(arguments)).map(drop)
    }

    /// Restarts it with its storage, and waits until it is ready.
    pub fn start_again(&mut self) -> Result<()> {
        self.begin_again()?;
        self.wait_until_ready()
    }

    /// Restarts it with its storage, without waiting.
    pub fn begin_again(&mut self) -> Result<()> {
        let log = File::create(self.path("log")).context("make a broker's log")?;
        let mut command = self.java("kafka.Kafka");
        command
            .arg(self.path("server.properties"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("share a broker's log")?)
            .stderr(log);
        self.process = Some(Process::spawn(&mut command)?);
        Ok(())
    }

    pub fn wait_until_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + self.patience;
        loop {
            let process = self.process.as_mut().context("the broker is not started")?;
            let ended = process.exited()?;
            let log = self.log()?;
            if log.contains(READY) {
                return Ok(());
            }
            if let Some(status) = ended {
                bail!("the broker ended with {status}: {}", log.trim());
            }
            ensure!(
                Instant::now() < deadline,
                "the broker is not ready: {}",
                log.trim()
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) -> Result<()> {
        self.signal(libc::SIGKILL)?;
        let mut process = self.process.take().context("the broker is not started")?;
        process.wait(self.patience).map(drop)
    }

    /// Sends it a signal, such as SIGSTOP.
    pub fn signal(&self, signal: i32) -> Result<()> {
        let process = self.process.as_ref().context("the broker is not started")?;
        process.signal(signal)
    }

    /// Its log since the last start.
    pub fn log(&self) -> Result<String> {
        fs::read_to_string(self.path("log")).context("read a broker's log")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn java(&self, class: &str) -> Command {
        let mut command = self.namespace.command("java");
        command
            .args(JAVA)
            .args(LOG)
            .arg("-cp")
            .arg(self.jars.join("*"))
            .arg(class);
        command
    }

    fn properties(&self, options: &BrokerOptions) -> String {
        let data = self.path("data").display().to_string();
        let node = self.node.to_string();
        let is_first = self.node == 1;
        let [client, internal] = [self.address(), self.plain_address()];
        let advertised = format!("CLIENT://{client},INTERNAL://{internal}");
        let listeners = if is_first {
            format!("{advertised},CONTROLLER://{CONTROLLER}")
        } else {
            advertised.clone()
        };
        let voters = format!("1@{CONTROLLER}");
        let fixed = [
            (
                "process.roles",
                if is_first {
                    "broker,controller"
                } else {
                    "broker"
                },
            ),
            ("node.id", &node),
            ("controller.quorum.voters", &voters),
            ("listeners", &listeners),
            ("advertised.listeners", &advertised),
            (
                "listener.security.protocol.map",
                "CLIENT:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
            ),
            ("inter.broker.listener.name", "INTERNAL"),
            ("controller.listener.names", "CONTROLLER"),
            ("log.dirs", &data),
            ("num.partitions", "3"),
            ("group.initial.rebalance.delay.ms", "0"),
            ("offsets.topic.num.partitions", "1"),
            ("offsets.topic.replication.factor", "1"),
            // A client that asks for a topic must not make it.
            ("auto.create.topics.enable", "true"),
        ];
        let fixed = fixed.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let mut all = BTreeMap::from(fixed);
        all.extend(options.settings.iter().cloned());
        let lines = all.iter().map(|(name, value)| format!("{name}={value}\n"));
        lines.collect()
    }
}
