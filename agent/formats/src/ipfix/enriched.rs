//! What the agent knows about a flow beyond its packets, as elements of the enterprise from the settings. `flow.proto` has
//! their numbers. They start far above IANA's because some collectors ignore the enterprise.
//!
//! A record has either all of these elements or none. Unknown values are empty, or have all bits set.

use proto::columns::{COLUMNS, Row, Visitor, visit};

use super::{
    elements::{DROPPED_PACKET_TOTAL_COUNT, Element, FLOW_FIRST_SEEN_MILLISECONDS},
    fields::{Fields, Length},
};

/// Longer names are truncated.
pub(super) const MOST_NAME_BYTES: usize = 120;

/// Whether anything is known about a flow beyond its packets.
pub(super) fn is_enriched(row: &Row<'_>) -> bool {
    let ends = row.ends.map(|end| end.end.total_dropped_packets);
    let mut known = Known(ends != [0; 2]);
    visit(row, &mut known);
    known.0
}

/// The length of the fields of a row.
pub(super) fn len_bytes(row: &Row<'_>, is_biflow: bool) -> usize {
    let mut len = Length::default();
    walk(row, is_biflow, &mut len);
    len.0
}

/// Visits the fields. The source is the row's first end.
pub(super) fn walk(row: &Row<'_>, is_biflow: bool, out: &mut impl Fields) {
    visit(row, &mut Elements(out));
    let [forward, reverse] = row.ends.map(|end| end.end.total_dropped_packets);
    if is_biflow {
        out.u64(DROPPED_PACKET_TOTAL_COUNT.reverse(), reverse);
    }
    out.u64(DROPPED_PACKET_TOTAL_COUNT, forward);
}

/// The column's element, if it is one of these. The time of the first packet is in every record.
const fn element(column: usize) -> Option<Element> {
    match COLUMNS[column].element {
        Some(number) if number != FLOW_FIRST_SEEN_MILLISECONDS.number => {
            Some(Element::of_enterprise(number))
        }
        _ => None,
    }
}

struct Known(bool);

impl Known {
    fn note<const C: usize>(&mut self, is_known: bool) {
        self.0 |= is_known && const { element(C).is_some() };
    }
}

impl<'a> Visitor<'a> for Known {
    fn number<const C: usize>(&mut self, value: Option<u32>) {
        self.note::<C>(value.is_some());
    }

    fn counter<const C: usize>(&mut self, value: u64) {
        self.note::<C>(value != 0);
    }

    fn id<const C: usize>(&mut self, value: Option<u64>) {
        self.note::<C>(value.is_some());
    }

    fn flag<const C: usize>(&mut self, value: bool) {
        self.note::<C>(value);
    }

    fn time<const C: usize>(&mut self, _: u64) {}

    fn address<const C: usize>(&mut self, bytes: &'a [u8]) {
        self.note::<C>(!bytes.is_empty());
    }

    fn digest<const C: usize>(&mut self, bytes: &'a [u8]) {
        self.note::<C>(!bytes.is_empty());
    }

    fn numbers<const C: usize>(&mut self, values: &'a [u32]) {
        self.note::<C>(!values.is_empty());
    }

    fn text<const C: usize>(&mut self, value: Option<&'a str>) {
        self.note::<C>(value.is_some());
    }
}

struct Elements<'o, F>(&'o mut F);

impl<'a, F: Fields> Visitor<'a> for Elements<'_, F> {
    fn number<const C: usize>(&mut self, value: Option<u32>) {
        let Some(element) = (const { element(C) }) else {
            return;
        };
        let value = value.unwrap_or(u32::MAX);
        match const { COLUMNS[C].bits() } {
            8 => self.0.u8(element, value as u8),
            16 => self.0.u16(element, value as u16),
            _ => self.0.u32(element, value),
        }
    }

    fn counter<const C: usize>(&mut self, value: u64) {
        if let Some(element) = const { element(C) } {
            self.0.u64(element, value);
        }
    }

    fn id<const C: usize>(&mut self, value: Option<u64>) {
        if let Some(element) = const { element(C) } {
            self.0.u64(element, value.unwrap_or(u64::MAX));
        }
    }

    fn flag<const C: usize>(&mut self, value: bool) {
        if let Some(element) = const { element(C) } {
            self.0.u8(element, value.into());
        }
    }

    fn time<const C: usize>(&mut self, _: u64) {}

    fn address<const C: usize>(&mut self, _: &'a [u8]) {
        const { assert!(element(C).is_none(), "an address has an element of IANA's") };
    }

    fn digest<const C: usize>(&mut self, _: &'a [u8]) {
        const { assert!(element(C).is_none(), "no element has a digest") };
    }

    fn numbers<const C: usize>(&mut self, _: &'a [u32]) {
        const { assert!(element(C).is_none(), "no element has a list") };
    }

    fn text<const C: usize>(&mut self, value: Option<&'a str>) {
        if let Some(element) = const { element(C) } {
            self.0.text(element, cut(value.unwrap_or_default()));
        }
    }
}

fn cut(name: &str) -> &str {
    &name[..name.floor_char_boundary(MOST_NAME_BYTES)]
}
