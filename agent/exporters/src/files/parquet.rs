//! Parquet files, which can be read only when they are complete. Their pieces are batches of our own protocol.

use std::fs::File;

use anyhow::{Result, bail};
use formats::parquet as format;
use sys::process_memory;

use super::{Compression, Made};

/// How to build Parquet files from pieces.
pub const MADE: Made = Made {
    stem: "flows",
    ending: &[".parquet"],
    whole_len: format::pieces::whole_len,
    make,
};

/// The same for a collector, whose pieces are batches as received.
pub const MADE_OF_MANY: Made = Made {
    make: make_of_many,
    ..MADE
};

fn make(pieces: &mut File, to: File, compression: Compression) -> Result<File> {
    made_by(format::make, pieces, to, compression)
}

fn make_of_many(pieces: &mut File, to: File, compression: Compression) -> Result<File> {
    made_by(format::make_of_many, pieces, to, compression)
}

fn made_by(
    make: fn(&mut File, File, format::Compression) -> Result<File>,
    pieces: &mut File,
    to: File,
    compression: Compression,
) -> Result<File> {
    let compression = match compression {
        Compression::None => format::Compression::None,
        Compression::Zstd => format::Compression::Zstd,
        Compression::Gzip => bail!("Parquet is not compressed with gzip here"),
    };
    let whole = make(pieces, to, compression);
    // Free the memory, or every thread of tokio's pool would keep this much.
    process_memory::give_back();
    whole
}

#[cfg(test)]
mod tests;
