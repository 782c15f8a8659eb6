//! Creates maps that the kernel accepts in the slots of a map of maps.
//!
//! Some kernels compare more than the shape with the template that the outer map was created with. Up to 6.1
//! `bpf_map_meta_equal` also requires the same `timer_off`. It differs between a value without type information (BTF)
//! and a value whose type has no timer. The loader creates the template with the object's type information, so these
//! maps get some, too: structures without members.

use std::os::fd::AsFd as _;

use anyhow::{Context as _, Result};
use aya::maps::MapData;
use aya_obj::generated::bpf_map_type::BPF_MAP_TYPE_ARRAY;

use super::bpf::{self, Shape};

// linux/btf.h.
const MAGIC: u16 = 0xeb9f;
const VERSION: u8 = 1;
const HEADER_LEN_BYTES: u32 = 24;
const KIND_INT: u32 = 1;
const KIND_STRUCT: u32 = 4;
const STRINGS: &[u8] = b"\0u32\0";
const U32_NAME: u32 = 1;

/// A type's number is its position, from 1.
const U32: u32 = 1;
const KEY: u32 = 2;
const VALUE: u32 = 3;

pub fn create(name: &str, shape: Shape) -> Result<MapData> {
    let types = bpf::load_btf(&types(shape)).context("load type information")?;
    // Arrays accept no other type of key.
    let key = if shape.map_type == BPF_MAP_TYPE_ARRAY as u32 {
        U32
    } else {
        KEY
    };
    let map = bpf::create_map(name, shape, types.as_fd(), key, VALUE)?;
    MapData::from_fd(map).context("ask for the map's shape")
}

/// The types of keys and values of these lengths, in the kernel's own byte order.
fn types(shape: Shape) -> Vec<u8> {
    let structure = |len_bytes| [0, KIND_STRUCT << 24, len_bytes];
    let words: Vec<u32> = [
        // A number's name, kind and length are followed by how many bits it has.
        &[U32_NAME, KIND_INT << 24, 4, 32][..],
        &structure(shape.key_len_bytes),
        &structure(shape.value_len_bytes),
    ]
    .concat();
    let types_len_bytes = words.len() as u32 * 4;
    let header = [
        HEADER_LEN_BYTES,
        0,
        types_len_bytes,
        types_len_bytes,
        STRINGS.len() as u32,
    ];
    let mut bytes = MAGIC.to_ne_bytes().to_vec();
    bytes.extend([VERSION, 0]);
    bytes.extend(header.into_iter().chain(words).flat_map(u32::to_ne_bytes));
    bytes.extend(STRINGS);
    bytes
}
