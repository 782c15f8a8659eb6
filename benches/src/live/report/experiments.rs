//! The experiments, as a person meets them: what is asked, the sentence that answers, and which few of
//! the figures are shown. No measured number stands here: sentences have places that the grid fills.

mod hook;
mod host;

pub struct Experiment {
    /// Of its plot's file and its anchor on the page.
    pub name: &'static str,
    pub bench: &'static str,
    pub heading: &'static str,
    /// With places as in `answer`.
    pub question: &'static str,
    /// `{flows}` is what all measurements have in common, `{10k: agent}` the median in that row and
    /// column, or what an added time says, and `{10k: agent | capture}` how it stands to another
    /// column, or with `{10k: agent | 1k: agent}` to another row.
    pub answer: &'static str,
    /// What the horizontal and the vertical axis of the plot show, without the unit.
    pub axes: (&'static str, &'static str),
    /// What all of its measurements have, as `hook=tc; measure=cpu_percent`.
    pub labels: &'static str,
    /// Titles, and labels that a row's measurements have.
    pub rows: &'static [(&'static str, &'static str)],
    pub columns: &'static [Column],
}

/// Its title, labels that its measurements have, and what it shows of them.
pub struct Column(pub &'static str, pub &'static str, pub Shows);

#[derive(Clone, Copy)]
pub enum Shows {
    /// The measurement, in the plot too.
    Bar(Tone),
    /// The measurement, in the table alone.
    Figure,
    /// The measurement over the one that has these labels instead.
    RatioTo(&'static str),
    /// The measurement less the one that has these labels instead.
    DifferenceTo(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// The agent as it is by default.
    Agent,
    /// A part of the agent's cost, or the agent in another state.
    Part,
    Quiet,
    Pale,
}

/// In the order of the page. A bench that comes later adds its own.
pub static ALL: &[&Experiment] = &[
    &hook::OVERHEAD,
    &hook::COLD,
    &hook::ENRICHED,
    &hook::THROUGHPUT,
    &host::SWEEP,
    &hook::NEWFLOWS,
    &hook::FILTERS,
    &host::LADDER,
    &host::HTTP,
    &host::SERVICE,
    &host::PRIORITY,
    &host::OUTPUTS,
    &host::USERSPACE,
    &host::PEERS,
    &host::COMPARE,
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::report::units;

    #[test]
    fn a_title_says_the_count_that_its_labels_choose() {
        let rows = ALL.iter().flat_map(|experiment| experiment.rows);
        let columns = ALL.iter().flat_map(|experiment| experiment.columns);
        let columns = columns.filter(|column| matches!(column.2, Shows::Bar(_) | Shows::Figure));
        let titled = rows
            .map(|(title, labels)| (title, labels))
            .chain(columns.map(|Column(title, labels, _)| (title, labels)));
        let mut seen = 0;
        for (title, labels) in titled {
            let counts = labels.split("; ").filter_map(|label| {
                let (name, count) = label.split_once('=')?;
                let is_count = ["flows", "table"].contains(&name) && count.parse::<u64>().is_ok();
                is_count.then(|| units::count(count))
            });
            for count in counts {
                let said = title
                    .split([' ', '/'])
                    .any(|word| word.trim_end_matches(',') == count);
                assert!(said, "{title:?} is of {count}");
                seen += 1;
            }
        }
        assert!(seen > 20, "{seen} titles with a count");
    }
}
