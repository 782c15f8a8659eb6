//! Decides by filter rules and sampling whether a packet is counted in the flow table.

use agent_common::{
    Packet, Reason,
    filter::{NetKey4, NetKey6, NetRows, Row, RuleSet, first_match},
    sample,
};
use aya_ebpf::{
    btf_maps::{Array, ArrayOfMaps, LpmTrie, lpm_trie::Key},
    macros::btf_map,
};

use crate::{account, switches};

/// `BPF_F_INNER_MAP` (5.10): inner arrays may differ in their number of entries.
const INNER_MAP: usize = 1 << 12;

/// Two slots each, one for the rule set in use and one for the next. They are empty without rules.
#[btf_map]
static RULE_ROWS: ArrayOfMaps<Array<Row, 1, INNER_MAP>, 2> = ArrayOfMaps::new();
#[btf_map]
static RULE_NETS_V4: ArrayOfMaps<LpmTrie<[u8; 8], NetRows, 1>, 2> = ArrayOfMaps::new();
#[btf_map]
static RULE_NETS_V6: ArrayOfMaps<LpmTrie<[u8; 16], NetRows, 1>, 2> = ArrayOfMaps::new();

/// Returns an error if the packet is not to be counted on the page. The packet's key must have the interface index.
#[inline(always)]
pub fn select(page: u32, packet: &Packet, direction: u32) -> Result<(), Reason> {
    if let Some(slot) = switches::rule_set()
        && is_excluded(packet, slot, direction) != 0
    {
        return Err(Reason::Filtered);
    }
    // `is_left_out` reads the rate again, since keeping it would take stack here.
    if switches::sample_below(page) != 0 && is_left_out(page, packet) != 0 {
        return Err(Reason::SampledOut);
    }
    Ok(())
}

/// A function of its own, so that the hash takes no registers and no stack of its caller. The page must have a sampling
/// rate.
#[inline(never)]
fn is_left_out(page: u32, packet: &Packet) -> u32 {
    u32::from(!sample::is_sampled(
        &packet.key,
        switches::sample_below(page),
    ))
}

/// A function of its own, so that it takes no registers when there are no rules. If a part of the rule set is missing,
/// the packet is counted.
#[inline(never)]
fn is_excluded(packet: &Packet, slot: u32, direction: u32) -> u32 {
    let Some(rows) = RULE_ROWS.get(slot) else {
        return 0;
    };
    let Some(hook) = account::hook(packet.key.ifindex, direction) else {
        return 0;
    };
    let matched = first_match(&Maps { rows, slot }, packet, hook);
    u32::from(matched.is_some_and(|matched| matched.is_excluded))
}

/// A rule set in the kernel's maps.
struct Maps<'a> {
    rows: &'a Array<Row, 1, INNER_MAP>,
    slot: u32,
}

impl RuleSet for Maps<'_> {
    #[inline(always)]
    fn row(&self, number: u32) -> Option<&Row> {
        self.rows.get(number)
    }

    #[inline(always)]
    fn nets_v4(&self, key: &NetKey4) -> Option<&NetRows> {
        // SAFETY: `Key` has the same layout and asks for less alignment.
        let key = unsafe { &*core::ptr::from_ref(key).cast::<Key<[u8; 8]>>() };
        RULE_NETS_V4.get(self.slot)?.get(key)
    }

    #[inline(always)]
    fn nets_v6(&self, key: &NetKey6) -> Option<&NetRows> {
        // SAFETY: as above.
        let key = unsafe { &*core::ptr::from_ref(key).cast::<Key<[u8; 16]>>() };
        RULE_NETS_V6.get(self.slot)?.get(key)
    }
}
