//! Finds where the last whole piece of a file ends, for each format that is written piece by piece.

use std::{
    fs::File,
    io::{self, BufReader, ErrorKind, Read as _, Seek as _, SeekFrom},
};

/// The beginning of every line that we write.
const BEGIN: &[u8; 9] = br#"{"type":""#;

/// For lines of JSON objects.
pub fn lines(file: &mut File) -> io::Result<u64> {
    let len = file.seek(SeekFrom::End(0))?;
    file.rewind()?;
    let mut first = [0; BEGIN.len()];
    if len != 0 && (file.read(&mut first)? < BEGIN.len() || first != *BEGIN) {
        return Err(ErrorKind::InvalidData.into());
    }
    // Search backwards from the end, one block at a time.
    let mut end = len;
    while end > 0 {
        let begin = end.saturating_sub(64 << 10);
        let mut block = vec![0; (end - begin) as usize];
        file.seek(SeekFrom::Start(begin))?;
        file.read_exact(&mut block)?;
        if let Some(newline) = block.iter().rposition(|&byte| byte == b'\n') {
            return Ok(begin + newline as u64 + 1);
        }
        end = begin;
    }
    Ok(0)
}

/// For IPFIX messages (RFC 7011, section 3.1): version 10, then the length of the message.
pub fn ipfix(file: &mut File) -> io::Result<u64> {
    const HEADER_LEN_BYTES: u64 = 16;
    let len = file.seek(SeekFrom::End(0))?;
    file.rewind()?;
    let mut reader = BufReader::new(file);
    if len != 0 && len < HEADER_LEN_BYTES {
        return Err(ErrorKind::InvalidData.into());
    }
    let mut whole = 0;
    while len - whole >= HEADER_LEN_BYTES {
        let mut header = [0; HEADER_LEN_BYTES as usize];
        reader.read_exact(&mut header)?;
        let [version_high, version_low, len_high, len_low, ..] = header;
        let message = u64::from(u16::from_be_bytes([len_high, len_low]));
        if [version_high, version_low] != [0, 10] || message < HEADER_LEN_BYTES {
            return Err(ErrorKind::InvalidData.into());
        }
        if whole + message > len {
            break;
        }
        reader.seek_relative((message - HEADER_LEN_BYTES).cast_signed())?;
        whole += message;
    }
    Ok(whole)
}
