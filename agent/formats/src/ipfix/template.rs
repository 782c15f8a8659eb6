//! Template numbers of flows. A number means the same fields in every agent with any settings: a collector may confuse
//! agents that share an address and an observation domain.

use proto::columns::COLUMNS;

use super::{Settings, flow::Shape};

/// First numbers of the templates with IANA elements only, by form. Options have 400 to 406. The rest of 256 to 639
/// and of 768 to 1535 stays unused, because earlier versions had other templates there.
const BIFLOW: u16 = 896;
const UNIFLOW: u16 = 640;
/// First number of the templates with enterprise elements.
const ENTERPRISES: u16 = 1536;
/// Templates per enterprise: biflows and uniflows, with and without annotations.
const OF_ENTERPRISE: u16 = 4 * SHAPES;
const SHAPES: u16 = Shape::COUNT as u16;
/// Enterprises with the same remainder share template numbers, and so do versions of this program.
const PLACES: u32 = ((u16::MAX - ENTERPRISES + 1) / OF_ENTERPRISE) as u32;

/// Differs between versions whose templates with an enterprise differ.
const VERSION: u32 = {
    let mut hash = (BIFLOW as u32) << 16 | UNIFLOW as u32;
    let mut column = 0;
    while column < COLUMNS.len() {
        if let Some(number) = COLUMNS[column].element {
            hash = hash.wrapping_mul(31).wrapping_add(number as u32);
            hash = hash.wrapping_add(COLUMNS[column].bits().cast_unsigned() as u32);
        }
        column += 1;
    }
    hash
};

pub(super) fn number(shape: Shape, settings: &Settings) -> u16 {
    let within = u16::from(shape.plain_number());
    let Some(enterprise) = settings.enterprise else {
        let first = if settings.is_biflow { BIFLOW } else { UNIFLOW };
        return first + within;
    };
    let place = ((enterprise % PLACES + VERSION % PLACES) % PLACES) as u16;
    let kind = u16::from(settings.is_biflow) << 1 | u16::from(shape.is_enriched());
    ENTERPRISES + OF_ENTERPRISE * place + SHAPES * kind + within
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, ops::RangeInclusive};

    use proto::{FlowBatch, FlowRecord, columns::Row};
    use sha1::{Digest as _, Sha1};

    use super::*;
    use crate::ipfix::{Octets, flow::Flow, options::Kind, specifiers};

    const BEFORE: [RangeInclusive<u16>; 3] = [256..=639, 768..=895, 1024..=1535];
    const OPTIONS: RangeInclusive<u16> = 400..=406;

    /// The templates of all shapes, by number.
    fn templates(settings: &Settings) -> BTreeMap<u16, Vec<u8>> {
        let record = FlowRecord::default();
        let batch = FlowBatch::default();
        let row = Row::new(&batch, &record, None);
        let flow = Flow::new(&record, settings.octets).with(&row);
        let plain = (0..SHAPES as u8).map(Shape::from_number);
        let mut shapes: Vec<_> = plain.clone().collect();
        if settings.enterprise.is_some() {
            shapes.extend(plain.map(Shape::enriched));
        }
        let of = |shape| {
            (
                number(shape, settings),
                specifiers(&flow, shape, settings).bytes,
            )
        };
        let count = shapes.len();
        let all: BTreeMap<_, _> = shapes.into_iter().map(of).collect();
        assert_eq!(all.len(), count);
        all
    }

    #[test]
    fn templates_of_different_fields_have_different_numbers_whatever_the_settings() {
        let mut known = BTreeMap::new();
        for enterprise in [
            None,
            Some(0),
            Some(29_304),
            Some(64_123),
            Some(64_124),
            Some(u32::MAX),
        ] {
            for (is_biflow, octets) in FORMS {
                let settings = Settings {
                    is_biflow,
                    octets,
                    enterprise,
                    ..Settings::datagrams()
                };
                for (number, fields) in templates(&settings) {
                    assert!(!OPTIONS.contains(&number));
                    assert!(BEFORE.iter().all(|unused| !unused.contains(&number)));
                    let before = known.insert(number, fields.clone());
                    assert!(before.is_none_or(|before| before == fields), "{number}");
                }
            }
        }
        // Biflows and uniflows: once without an enterprise, and for each enterprise with and without annotations.
        assert_eq!(known.len(), usize::from(SHAPES) * (2 + 5 * 4));
    }

    #[test]
    fn options_have_none_of_the_numbers_of_flows() {
        let of_options = [
            Kind::Metering,
            Kind::Exporting,
            Kind::Sampling,
            Kind::Interface,
            Kind::InterfaceInNetns,
        ]
        .map(Kind::template);
        assert!(of_options.iter().all(|number| OPTIONS.contains(number)));
    }

    const FORMS: [(bool, Octets); 4] = [
        (true, Octets::Ip),
        (true, Octets::Layer2),
        (false, Octets::Ip),
        (false, Octets::Layer2),
    ];

    /// Agents of different versions may also share an address. If you change a template's fields of IANA, change `BIFLOW` or
    /// `UNIFLOW` so that the old numbers are no longer used, then update these digests. Elements of the enterprise
    /// change the numbers themselves.
    #[test]
    fn the_fields_of_a_number_never_change() {
        let digest = |(is_biflow, octets)| {
            let settings = Settings {
                is_biflow,
                octets,
                ..Settings::datagrams()
            };
            let mut hash = Sha1::new();
            for (number, fields) in templates(&settings) {
                hash.update(number.to_be_bytes());
                hash.update(fields);
            }
            let digest: [u8; 20] = hash.finalize().into();
            u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]])
        };
        let (biflow, uniflow) = (2_732_807_281, 2_615_997_096);
        // Templates do not depend on which octets are counted.
        assert_eq!(FORMS.map(digest), [biflow, biflow, uniflow, uniflow]);
    }
}
