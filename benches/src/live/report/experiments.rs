//! The experiments on the page: the question, the sentence that answers it, and the few figures to show. They contain
//! no measured number: the grid fills in the placeholders in the sentences.

mod hook;
mod host;

pub struct Experiment {
    /// The name of the plot's file and of the anchor on the page.
    pub name: &'static str,
    pub bench: &'static str,
    pub heading: &'static str,
    /// May contain placeholders, as in `answer`.
    pub question: &'static str,
    /// `{flows}` is a label that all measurements share. `{10k: agent}` is the median in that row and column, or an
    /// added time in words. `{10k: agent | capture}` compares it with another column, and `{10k: agent | 1k: agent}`
    /// with another row.
    pub answer: &'static str,
    /// The names of the plot's horizontal and vertical axes, without units.
    pub axes: (&'static str, &'static str),
    /// Labels that all measurements share, such as `hook=tc; measure=cpu_percent`.
    pub labels: &'static str,
    /// A title for each row, and the labels of its measurements.
    pub rows: &'static [(&'static str, &'static str)],
    pub columns: &'static [Column],
}

/// A title, the labels of the measurements, and how to show them.
pub struct Column(pub &'static str, pub &'static str, pub Shows);

#[derive(Clone, Copy)]
pub enum Shows {
    /// The measurement, in the table and the plot.
    Bar(Tone),
    /// The measurement, only in the table.
    Figure,
    /// The measurement divided by the one with these labels instead.
    RatioTo(&'static str),
    /// The measurement minus the one with these labels instead.
    DifferenceTo(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// The agent with its default settings.
    Agent,
    /// A part of the agent's cost, or the agent in another configuration.
    Part,
    Quiet,
    Pale,
}

/// In the order of the page. Append later benches.
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
