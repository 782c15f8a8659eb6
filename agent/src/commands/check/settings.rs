//! Checks whether the agent could start with the settings of the file and the environment.

use anyhow::Result;

use super::Check;
use crate::{
    agent::Config,
    commands::settings::{Layers, Settings},
};

/// The settings, and the configuration built from them.
pub(super) fn read(layers: &Layers) -> Result<(Settings, Config)> {
    let settings = layers.read()?;
    let config = settings.config()?;
    Ok((settings, config))
}

pub(super) fn check(read: &Result<(Settings, Config)>) -> Check {
    match read {
        Ok((settings, config)) => {
            let file = match &settings.file {
                Some(path) => path.display().to_string(),
                None => "no file".to_owned(),
            };
            let rules = config.rules.len();
            let detail = format!("{file}; {rules} filter rules");
            let warnings: Vec<&str> = config.warnings().map(String::as_str).collect();
            if warnings.is_empty() {
                return Check::ok("settings", detail);
            }
            let detail = format!("{detail}; {}", warnings.join("; "));
            Check::warn("settings", detail, "mend the files of TLS")
        }
        Err(error) => Check::missing(
            "settings",
            format!("{error:#}"),
            "correct it; `flow-agent config check` tries a file",
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;
    use crate::commands::check::{Status, line};

    fn checked(file: &Path) -> Check {
        check(&read(&Layers::of_a_file(file)))
    }

    #[test]
    fn settings_that_no_agent_could_start_with_are_missing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.toml");
        let of = |text: &str| {
            fs::write(&path, text).unwrap();
            checked(&path)
        };
        let good = of("filter = ['exclude all; include all']");
        assert_eq!(good.status, Status::Ok);
        let expected = format!("{}; 2 filter rules", path.display());
        assert_eq!(good.detail, expected);

        let bad = of("filter = ['exclude garbage']");
        assert_eq!(bad.status, Status::Missing);
        let line = line(&bad, 8);
        let [first, shown, mark] = line.lines().collect::<Vec<_>>()[..] else {
            panic!("three lines: {line}");
        };
        assert!(
            first.contains("config.toml:1:20: no term begins like this"),
            "{first}"
        );
        assert!(
            first.ends_with("`flow-agent config check` tries a file"),
            "{first}"
        );
        assert!(shown.ends_with("  filter = ['exclude garbage']"), "{shown}");
        assert!(mark.ends_with("^^^^^^^"), "{mark}");

        let rules = folder.path().join("filters");
        let with_file = format!("filter_file = '{}'", rules.display());
        let gone = of(&with_file);
        assert!(
            gone.detail.contains("No such file") && gone.detail.ends_with("config.toml:1:1)"),
            "{}",
            gone.detail
        );
        fs::write(&rules, "exclude all\nexclude").unwrap();
        let bad = of(&with_file);
        assert!(
            bad.detail.contains("filters:2:9: expected"),
            "{}",
            bad.detail
        );
        let many = of(&format!("filter = ['{}']", "exclude all;".repeat(1025)));
        assert!(many.detail.contains("at most 1024"), "{}", many.detail);
        let contradiction = of("xdp_mode = 'native'");
        assert!(
            contradiction.detail.contains("config.toml:1:1"),
            "{}",
            contradiction.detail
        );
    }
}
