//! Finds the name that was meant by a misspelt one.

/// A name at least this similar may have been meant (Jaro-Winkler, 1 is equal).
const SIMILAR: f64 = 0.75;

/// The most similar of the known names, if one is similar.
pub fn nearest<N: AsRef<str>>(name: &str, known: impl IntoIterator<Item = N>) -> Option<N> {
    known
        .into_iter()
        .map(|known| (strsim::jaro_winkler(name, known.as_ref()), known))
        .filter(|(similarity, _)| *similarity >= SIMILAR)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, known)| known)
}

/// A question to put behind the misspelt name, or nothing.
pub fn hint<N: AsRef<str>>(name: &str, known: impl IntoIterator<Item = N>) -> String {
    nearest(name, known).map_or_else(String::new, |known| {
        format!(" (did you mean {}?)", known.as_ref())
    })
}
