//! Installs a Kafka broker (Apache's own, which Maven fetches with its dependencies) and librdkafka, which reads what a
//! collector stores there.

use std::{fs, process::Command};

use anyhow::{Context as _, Result};

use super::{example_requirements, folder, is_marked, mark, python_packages};
use crate::{
    apt::Apt,
    workspace::{has_command, run},
};

/// Needs Java 17.
const KAFKA_VERSION: &str = "4.2.0";
/// The logging library's version that this Kafka requires. Without it the broker does not log.
const SLF4J_VERSION: &str = "1.7.36";
const PLUGIN: &str = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies";

/// librdkafka for Python.
const CLIENT: &str = "confluent-kafka==2.16.1";

pub fn install_client(apt: Option<&Apt>) -> Result<()> {
    let example = example_requirements()?;
    let wanted = example.split_whitespace().chain([CLIENT]);
    python_packages(apt, "kafka-client", &wanted.collect::<Vec<_>>())
}

pub fn install(apt: Option<&Apt>) -> Result<()> {
    let project = format!(
        r#"<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>flow-agent</groupId>
  <artifactId>broker</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>{KAFKA_VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId>
      <artifactId>slf4j-simple</artifactId>
      <version>{SLF4J_VERSION}</version>
    </dependency>
  </dependencies>
</project>
"#
    );
    let folder = folder("kafka")?;
    if is_marked(&folder, &project) {
        return Ok(());
    }
    if !has_command("mvn") || !has_command("java") {
        let apt = apt.context("there is no Maven, and no apt, or no way to be root for it")?;
        let why = "it fetches a broker of Kafka, in which a collector stores";
        apt.install(&["maven", "default-jre-headless"], why)?;
    }
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    let file = folder.join("pom.xml");
    fs::write(&file, &project).with_context(|| format!("write {}", file.display()))?;
    let jars = folder.join("jars");
    eprintln!("setup: fetching Kafka {KAFKA_VERSION} (a collector stores in it)");
    run(Command::new("mvn")
        .args(["--batch-mode", "--quiet", PLUGIN, "-DincludeScope=runtime"])
        .arg(format!("-DoutputDirectory={}", jars.display()))
        .current_dir(&folder))?;
    run(Command::new("java")
        .arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=error")
        .arg("-cp")
        .arg(jars.join("*"))
        .args(["kafka.Kafka", "--version"]))
    .context("this Java does not run it: it takes 17 or later")?;
    mark(&folder, &project)
}
