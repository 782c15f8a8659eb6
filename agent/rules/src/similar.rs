//! Finds the name that was meant by a misspelt one.

/// A name at least this similar may have been meant (Jaro-Winkler, 1 is equal).
const SIMILAR: f64 = 0.75;

/// So similar is a name with one letter too many, too few or wrong, or with two letters exchanged.
const ONE_LETTER: f64 = 0.9;

/// The most similar of the known names, if one is similar.
pub fn nearest<N: AsRef<str>>(name: &str, known: impl IntoIterator<Item = N>) -> Option<N> {
    known
        .into_iter()
        .map(|known| (similarity(name, known.as_ref()), known))
        .filter(|(similarity, _)| *similarity >= SIMILAR)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, known)| known)
}

fn similarity(name: &str, known: &str) -> f64 {
    let similarity = strsim::jaro_winkler(name, known);
    // Jaro-Winkler finds little in common in short names such as tpc and tcp.
    if name.len() > 2 && strsim::osa_distance(name, known) == 1 {
        similarity.max(ONE_LETTER)
    } else {
        similarity
    }
}

/// A question to put behind the misspelt name, or nothing.
pub fn hint<N: AsRef<str>>(name: &str, known: impl IntoIterator<Item = N>) -> String {
    nearest(name, known).map_or_else(String::new, |known| {
        format!(" (did you mean {}?)", known.as_ref())
    })
}
