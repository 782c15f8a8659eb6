//! Maps that another process made, as descriptors that may be anything.

use std::os::fd::OwnedFd;

use anyhow::{Context as _, Result, ensure};
use aya::maps::{MapData, MapInfo, MapType};

/// An array of values of this type. Fails if the descriptor is anything else.
pub fn array<V>(map: OwnedFd, elements: u32) -> Result<MapData> {
    checked(map, |info| {
        (info.key_size(), info.value_size(), info.max_entries())
            == (size_of::<u32>() as u32, size_of::<V>() as u32, elements)
            && info.map_type().is_ok_and(|kind| kind == MapType::Array)
    })
}

/// A hash map of these types. Fails if the descriptor is anything else.
pub fn hash<K, V>(map: OwnedFd) -> Result<MapData> {
    checked(map, |info| {
        (info.key_size(), info.value_size()) == (size_of::<K>() as u32, size_of::<V>() as u32)
            && info.map_type().is_ok_and(|kind| kind == MapType::Hash)
    })
}

fn checked(map: OwnedFd, is_it: impl FnOnce(&MapInfo) -> bool) -> Result<MapData> {
    let map = MapData::from_fd(map).context("ask for the map's shape")?;
    let info = map.info().context("ask for the map's shape")?;
    ensure!(is_it(&info), "it is a map of another kind");
    Ok(map)
}
