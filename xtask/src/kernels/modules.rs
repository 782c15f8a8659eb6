//! Finds the files of kernel modules and their dependencies, in loading order.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail, ensure};

/// The modules under a folder.
pub struct Modules {
    paths: BTreeMap<String, PathBuf>,
    /// Modules that are built into the kernel.
    built_in: BTreeSet<String>,
}

/// A module, uncompressed for loading.
pub struct Module {
    pub name: String,
    pub bytes: Vec<u8>,
}

impl Modules {
    pub fn under(folder: &Path) -> Result<Self> {
        let list = folder.join("modules.builtin");
        let built_in = fs::read_to_string(&list)
            .with_context(|| format!("read {}", list.display()))?
            .lines()
            .filter_map(|path| Some(canonical(path.rsplit('/').next()?.strip_suffix(".ko")?)))
            .collect();
        let mut paths = BTreeMap::new();
        let mut folders = vec![folder.to_owned()];
        while let Some(folder) = folders.pop() {
            let files =
                fs::read_dir(&folder).with_context(|| format!("list {}", folder.display()))?;
            for file in files {
                let file = file.with_context(|| format!("list {}", folder.display()))?;
                let kind = file.file_type().context("stat a module")?;
                if kind.is_dir() {
                    folders.push(file.path());
                } else if let Some((name, _)) = file.file_name().to_string_lossy().split_once(".ko")
                {
                    paths.insert(canonical(name), file.path());
                }
            }
        }
        Ok(Self { paths, built_in })
    }

    /// Fails for a module that is neither a file nor built into the kernel.
    pub fn with_dependencies(&self, names: &[&str]) -> Result<Vec<Module>> {
        let mut found = Vec::new();
        let mut seen = BTreeSet::new();
        for name in names {
            self.add(&canonical(name), &mut seen, &mut found)?;
        }
        Ok(found)
    }

    fn add(&self, name: &str, seen: &mut BTreeSet<String>, found: &mut Vec<Module>) -> Result<()> {
        if !seen.insert(name.to_owned()) {
            return Ok(());
        }
        let Some(path) = self.paths.get(name) else {
            ensure!(self.built_in.contains(name), "the kernel has no {name}");
            return Ok(());
        };
        let bytes = decompressed(path)?;
        for dependency in dependencies(&bytes) {
            self.add(&canonical(&dependency), seen, found)?;
        }
        found.push(Module {
            name: name.to_owned(),
            bytes,
        });
        Ok(())
    }
}

/// File names may use `-` where the kernel uses `_`.
fn canonical(name: &str) -> String {
    name.replace('-', "_")
}

fn decompressed(path: &Path) -> Result<Vec<u8>> {
    let extension = path.extension().unwrap_or_default().to_string_lossy();
    let program = match &*extension {
        "ko" => return fs::read(path).with_context(|| format!("read {}", path.display())),
        "xz" => "xz",
        "zst" => "zstd",
        other => bail!("{}: unknown compression {other}", path.display()),
    };
    let output = Command::new(program)
        .arg("-dc")
        .arg(path)
        .output()
        .with_context(|| format!("start {program}"))?;
    ensure!(output.status.success(), "{program} -dc {}", path.display());
    Ok(output.stdout)
}

/// The dependencies of a module, from its `.modinfo` section: `depends=a,b` between two zero bytes.
fn dependencies(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|window| window == KEY) else {
        return Vec::new();
    };
    let value = module[at + KEY.len()..]
        .split(|&byte| byte == 0)
        .next()
        .unwrap_or_default();
    String::from_utf8_lossy(value)
        .split(',')
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_that_is_neither_there_nor_built_in_is_an_error() {
        let modules = Modules {
            paths: BTreeMap::new(),
            built_in: BTreeSet::from(["ip_gre".to_owned()]),
        };
        assert!(modules.with_dependencies(&["ip-gre"]).unwrap().is_empty());
        assert!(modules.with_dependencies(&["ip_gre", "sit"]).is_err());
    }

    #[test]
    fn a_module_names_what_it_depends_on() {
        let module = b"\x7fELF..\0license=GPL\0depends=udp_tunnel,ip6_udp_tunnel\0name=x\0";
        assert_eq!(dependencies(module), ["udp_tunnel", "ip6_udp_tunnel"]);
        assert!(dependencies(b"\0license=GPL\0depends=\0name=x\0").is_empty());
        assert!(dependencies(b"").is_empty());
    }
}
