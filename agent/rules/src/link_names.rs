//! The names of an interface: its name and its alternative names (`ip link property add dev eth0 altname uplink`).

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LinkNames {
    pub name: String,
    pub altnames: Vec<String>,
}

impl LinkNames {
    pub fn all(&self) -> impl Iterator<Item = &str> {
        let altnames = self.altnames.iter();
        std::iter::once(&self.name)
            .chain(altnames)
            .map(String::as_str)
    }
}

impl From<&str> for LinkNames {
    fn from(name: &str) -> Self {
        name.to_owned().into()
    }
}

impl From<String> for LinkNames {
    fn from(name: String) -> Self {
        Self {
            name,
            altnames: Vec::new(),
        }
    }
}
