//! Compresses the batches of a stream, if the client asks for it.
//!
//! A message has a few fields of its consumer and a body that all consumers share. Only the body is worth compressing,
//! and consumers that read at the same pace share the result. The consumer's fields precede it uncompressed: in the
//! same gzip member as a stored block (RFC 1951 section 3.2.4), or in a separate Zstandard frame with a raw block (RFC
//! 8878 section 3.1).

use std::{
    collections::VecDeque,
    io::{self, Write as _},
    sync::{Arc, Mutex, PoisonError},
};

use bytes::{BufMut as _, Bytes, BytesMut};
use flate2::{Compression, Crc, write::DeflateEncoder};
use hub::{BatchId, SharedHeldBytes};
use tokio::{
    sync::{OnceCell, Semaphore},
    task::spawn_blocking,
};
use tonic::codegen::http::HeaderMap;

const ASKED: &str = "grpc-accept-encoding";

/// Compressed bodies kept for other consumers. An uncompressed body has at most some 260 KiB.
const KEPT: usize = 32;
/// Bodies compressed at the same time.
const AT_ONCE: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    Gzip,
    Zstd,
}

impl Encoding {
    /// The encoding that a client asks for. Many libraries accept gzip without the user having asked for it. On a Unix
    /// socket, where bytes cost nothing, only a client that compressed its own request gets it.
    pub fn asked(headers: &HeaderMap, is_on_a_unix_socket: bool) -> Option<Self> {
        let has_compressed = headers
            .get("grpc-encoding")
            .is_some_and(|encoding| encoding != "identity");
        if is_on_a_unix_socket && !has_compressed {
            return None;
        }
        let lists = headers.get_all(ASKED).into_iter();
        let lists = lists.filter_map(|list| list.to_str().ok());
        let names: Vec<&str> = lists
            .flat_map(|list| list.split(','))
            .map(str::trim)
            .collect();
        [Self::Zstd, Self::Gzip]
            .into_iter()
            .find(|encoding| names.contains(&encoding.name()))
    }

    /// The name in gRPC headers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        }
    }
}

/// A compressed body.
pub struct Compressed {
    encoding: Encoding,
    /// Deflate blocks, the last one marked as such, or a Zstandard frame.
    pub bytes: Bytes,
    /// The checksum of the uncompressed body.
    crc: Crc,
    /// Counts the bytes once, however many consumers hold them.
    pub held: SharedHeldBytes,
}

impl Compressed {
    fn of(encoding: Encoding, body: &[u8]) -> io::Result<Self> {
        let mut crc = Crc::new();
        let bytes = match encoding {
            Encoding::Gzip => {
                crc.update(body);
                let mut deflated = DeflateEncoder::new(Vec::new(), Compression::fast());
                deflated.write_all(body)?;
                deflated.finish()?
            }
            Encoding::Zstd => zstd::bulk::compress(body, 1)?,
        };
        // Drops spare capacity: the compressors may have reserved more.
        let bytes = bytes.into_boxed_slice();
        Ok(Self {
            encoding,
            bytes: bytes.into(),
            crc,
            held: SharedHeldBytes::default(),
        })
    }

    /// The bytes before and after the compressed body, so that together they decompress to `prefix` and the body.
    /// `None` if the prefix is too long, which a consumer's own fields never are.
    pub fn around(&self, prefix: &[u8]) -> Option<[Bytes; 2]> {
        let len = u8::try_from(prefix.len()).ok()?;
        let (mut before, mut after) = (BytesMut::new(), BytesMut::new());
        match self.encoding {
            Encoding::Gzip => {
                // RFC 1952 section 2.3: no name, no time, any system.
                before.put_slice(&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255]);
                if len != 0 {
                    // A stored block, not the last; its lengths follow, byte-aligned.
                    before.put_u8(0);
                    before.put_u16_le(len.into());
                    before.put_u16_le(!u16::from(len));
                    before.put_slice(prefix);
                }
                let mut crc = Crc::new();
                crc.update(prefix);
                crc.combine(&self.crc);
                after.put_u32_le(crc.sum());
                after.put_u32_le(crc.amount());
            }
            Encoding::Zstd => {
                before.put_u32_le(0xfd2f_b528);
                // Single segment with a one-byte size; then the last block, raw.
                before.put_u8(0x20);
                before.put_u8(len);
                let [low, middle, high, _] = (u32::from(len) << 3 | 1).to_le_bytes();
                before.put_slice(&[low, middle, high]);
                before.put_slice(prefix);
            }
        }
        Some([before.freeze(), after.freeze()])
    }
}

type GuardedBytes = (Encoding, BatchId, Arc<OnceCell<Arc<Compressed>>>);

/// Compresses bodies for all streams, and caches the latest for other consumers.
pub struct Compressor {
    kept: Mutex<VecDeque<GuardedBytes>>,
    turns: Semaphore,
}

impl Default for Compressor {
    fn default() -> Self {
        Self {
            kept: Mutex::default(),
            turns: Semaphore::new(AT_ONCE),
        }
    }
}

impl Compressor {
    /// The compressed body, or `None` if compression does not make it smaller. `id` identifies a body shared by
    /// consumers.
    pub async fn compress(
        &self,
        encoding: Encoding,
        id: Option<BatchId>,
        body: Bytes,
    ) -> Option<Arc<Compressed>> {
        let len = body.len();
        let place = id.map_or_else(Arc::default, |id| self.place(encoding, id));
        let compressed = place.get_or_try_init(|| self.compressed(encoding, body));
        let compressed = Arc::clone(compressed.await.ok()?);
        (compressed.bytes.len() < len).then_some(compressed)
    }

    fn place(&self, encoding: Encoding, id: BatchId) -> Arc<OnceCell<Arc<Compressed>>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let known = kept
            .iter()
            .find(|known| (known.0, known.1) == (encoding, id));
        if let Some((_, _, place)) = known {
            return Arc::clone(place);
        }
        if kept.len() == KEPT {
            kept.pop_front();
        }
        let place = Arc::default();
        kept.push_back((encoding, id, Arc::clone(&place)));
        place
    }

    async fn compressed(&self, encoding: Encoding, body: Bytes) -> io::Result<Arc<Compressed>> {
        let _turn = self.turns.acquire().await.map_err(io::Error::other)?;
        let compressed = spawn_blocking(move || Compressed::of(encoding, &body)).await;
        compressed.map_err(io::Error::other)?.map(Arc::new)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::GzDecoder;
    use tonic::codegen::http::{HeaderName, HeaderValue};

    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for &(name, value) in pairs {
            let name = HeaderName::from_static(name);
            headers.append(name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn a_client_gets_what_it_asks_for_and_on_a_unix_socket_only_if_it_compresses_too() {
        let accepts = |list| headers(&[(ASKED, list)]);
        for (headers, over_tcp, on_unix) in [
            (HeaderMap::new(), None, None),
            (
                accepts("identity, deflate, gzip"),
                Some(Encoding::Gzip),
                None,
            ),
            (accepts("gzip,zstd"), Some(Encoding::Zstd), None),
            (accepts("brotli,gzipped"), None, None),
            (
                headers(&[(ASKED, "br"), (ASKED, "gzip"), ("grpc-encoding", "gzip")]),
                Some(Encoding::Gzip),
                Some(Encoding::Gzip),
            ),
            (
                headers(&[(ASKED, "gzip"), ("grpc-encoding", "identity")]),
                Some(Encoding::Gzip),
                None,
            ),
        ] {
            assert_eq!(Encoding::asked(&headers, false), over_tcp, "{headers:?}");
            assert_eq!(Encoding::asked(&headers, true), on_unix, "{headers:?}");
        }
    }

    #[test]
    fn prefix_and_body_are_one_message_for_every_decoder() {
        let body: Vec<u8> = (0..100_000_u32)
            .flat_map(|n| (n / 7).to_le_bytes())
            .collect();
        for prefix in [&b""[..], b"a consumer's own fields", &[7; 255]] {
            for body in [&body[..], b"", b"x"] {
                let whole = [prefix, body].concat();
                let [gzip, zstd] = [Encoding::Gzip, Encoding::Zstd].map(|encoding| {
                    let compressed = Compressed::of(encoding, body).unwrap();
                    let [before, after] = compressed.around(prefix).unwrap();
                    [before, compressed.bytes, after].concat()
                });
                let mut decoded = Vec::new();
                // Reads one member only, like most gRPC implementations.
                GzDecoder::new(&gzip[..]).read_to_end(&mut decoded).unwrap();
                assert!(decoded == whole);
                assert!(zstd::decode_all(&zstd[..]).unwrap() == whole);
            }
        }
        let compressed = Compressed::of(Encoding::Zstd, &body).unwrap();
        assert!(compressed.around(&[0; 256]).is_none());
    }

    #[tokio::test]
    async fn a_body_is_compressed_once_for_those_who_ask_for_the_same() {
        let compressor = Compressor::default();
        let body = Bytes::from(vec![0; 10_000]);
        let id = |index| Some(BatchId { scan_id: 1, index });
        let compress = |encoding, id| compressor.compress(encoding, id, body.clone());
        let gzip = compress(Encoding::Gzip, id(0)).await.unwrap();
        let again = compress(Encoding::Gzip, id(0)).await.unwrap();
        assert!(Arc::ptr_eq(&gzip, &again));
        for other in [
            compress(Encoding::Zstd, id(0)).await,
            compress(Encoding::Gzip, id(1)).await,
            compress(Encoding::Gzip, None).await,
        ] {
            assert!(!Arc::ptr_eq(&gzip, &other.unwrap()));
        }
        for index in 2..100 {
            compress(Encoding::Gzip, id(index)).await.unwrap();
        }
        assert_eq!(compressor.kept.lock().unwrap().len(), KEPT);
        let short = Bytes::from_static(b"x");
        let longer = compressor.compress(Encoding::Gzip, None, short).await;
        assert!(longer.is_none());
    }
}
