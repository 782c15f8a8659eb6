//! The tarball, on a machine without the package.

use anyhow::{Result, ensure};

use super::{SERVICE_PAGE, Service, UNIT, commands};

/// A path with a space, as users may choose.
const FOLDER: &str = "/srv/my tools";

pub(super) fn serves(service: &mut Service) -> Result<String> {
    let machine = &service.machine;
    // Purging the package left its user.
    machine.run("userdel flow-agent")?;
    machine.run("cd /tmp && sha256sum --check --quiet SHA256SUMS")?;
    machine.run(&format!(
        "mkdir '{FOLDER}' && tar -C '{FOLDER}' -xf /tmp/flow-agent-*.tar.gz"
    ))?;
    let inside = |line: &str| machine.run(&format!("cd '{FOLDER}'/flow-agent-* && {line}"));
    let version = inside("./flow-agent --version")?;
    // Loads the programs into the kernel.
    let checked = inside("./flow-agent check")?;
    ensure!(checked.ends_with("the agent can run here"), "{checked}");
    for file in ["man/flow-agent-run.1.gz", "completions/bash", "LICENSE-MIT"] {
        inside(&format!("test -s {file}"))?;
    }
    let lines = commands(SERVICE_PAGE, "## Without the package")?;
    for line in &lines {
        inside(line)?;
    }
    service.counts_from_zero()?;
    let user = machine.run(&format!("systemctl show --value -p User {UNIT}"))?;
    ensure!(user == "flow-agent", "{user}");
    Ok(format!(
        "{version}: its check says that it can run; {} documented commands make the service, which counts",
        lines.len()
    ))
}
