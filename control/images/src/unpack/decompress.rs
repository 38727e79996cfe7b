//! The tar stream of a layer: decompressed, hashed and bounded on a separate thread, so that two processors work.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use flate2::bufread::MultiGzDecoder;

use super::UnpackError;
use crate::digest::{Digest, Hasher};
use crate::limits::LayerLimits;

/// Bytes that go from one thread to the other at a time.
const CHUNK_BYTES: usize = 256 << 10;
/// Chunks in between: enough that neither thread waits for a short pause of the other.
const CHUNKS_BETWEEN: usize = 8;
const INPUT_BUFFER_BYTES: usize = 256 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compression {
    None,
    Gzip,
    Zstd,
}

/// Detects the compression by the first bytes. A zstd stream may begin with a skippable frame (zstd:chunked has such).
fn detect(start: &[u8]) -> Compression {
    match start {
        [0x1f, 0x8b, ..] => Compression::Gzip,
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Compression::Zstd,
        _ => Compression::None,
    }
}

/// The compression of a media type; `None` if it does not specify one.
fn promised(media_type: &str) -> Option<Compression> {
    if media_type.ends_with("gzip") {
        Some(Compression::Gzip)
    } else if media_type.ends_with("zstd") {
        Some(Compression::Zstd)
    } else if media_type.ends_with(".tar") {
        Some(Compression::None)
    } else {
        None
    }
}

/// Counts what was read of the compressed file.
struct Counted<R>(R, Arc<AtomicU64>);

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.0.read(buffer)?;
        self.1.fetch_add(bytes as u64, Relaxed);
        Ok(bytes)
    }
}

/// The uncompressed stream, as it comes from the other thread.
pub(super) struct TarStream {
    chunks: mpsc::Receiver<Vec<u8>>,
    current: io::Cursor<Vec<u8>>,
    thread: Option<JoinHandle<Result<Digest, UnpackError>>>,
}

impl TarStream {
    pub(super) fn start(file: File, media_type: &str, limits: &LayerLimits) -> Result<Self, UnpackError> {
        let compressed = Arc::new(AtomicU64::new(0));
        let mut input = BufReader::with_capacity(INPUT_BUFFER_BYTES, Counted(file, Arc::clone(&compressed)));
        let start = input.fill_buf().map_err(|why| UnpackError::storage("the downloaded layer", &why))?;
        let compression = detect(start);
        if let Some(promised) = promised(media_type).filter(|promised| *promised != compression) {
            // Builders mix these up, and all clients decide by the bytes.
            tracing::debug!(media_type, ?promised, found = ?compression, "a layer's media type does not fit its bytes");
        }
        let reader: Box<dyn Read + Send> = match compression {
            Compression::None => Box::new(input),
            Compression::Gzip => Box::new(MultiGzDecoder::new(input)),
            Compression::Zstd => {
                let decoder = zstd::stream::read::Decoder::with_buffer(input);
                Box::new(decoder.map_err(|why| UnpackError::corrupt(format!("zstd: {why}")))?)
            }
        };
        let (send, chunks) = mpsc::sync_channel(CHUNKS_BETWEEN);
        let reader_thread = Reader { reader, send, limits: limits.clone(), compressed };
        let thread = std::thread::Builder::new().name("inflate".into()).spawn(move || reader_thread.run());
        let thread = thread.map_err(|why| UnpackError::storage("a thread", &why))?;
        Ok(Self { chunks, current: io::Cursor::default(), thread: Some(thread) })
    }

    /// Reads to the end and returns the digest of the whole stream; an error of the other thread comes out here.
    pub(super) fn finish(mut self) -> Result<Digest, UnpackError> {
        while self.chunks.recv().is_ok() {}
        let lost = || UnpackError::corrupt("the thread that inflates has ended".into());
        self.thread.take().ok_or_else(lost)?.join().map_err(|_| lost())?
    }
}

impl Read for TarStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let bytes = self.current.read(buffer)?;
            if bytes > 0 || buffer.is_empty() {
                return Ok(bytes);
            }
            match self.chunks.recv() {
                Ok(chunk) => self.current = io::Cursor::new(chunk),
                Err(mpsc::RecvError) => return Ok(0),
            }
        }
    }
}

struct Reader {
    reader: Box<dyn Read + Send>,
    send: mpsc::SyncSender<Vec<u8>>,
    limits: LayerLimits,
    compressed: Arc<AtomicU64>,
}

impl Reader {
    fn run(mut self) -> Result<Digest, UnpackError> {
        let (mut hasher, mut total) = (Hasher::sha256(), 0_u64);
        loop {
            // For the other thread, which frees it.
            let mut chunk = Vec::with_capacity(CHUNK_BYTES);
            let read = self.reader.by_ref().take(CHUNK_BYTES as u64).read_to_end(&mut chunk);
            let bytes = read.map_err(|why| UnpackError::corrupt(format!("it cannot be decompressed: {why}")))?;
            if bytes == 0 {
                return Ok(hasher.finish());
            }
            total += bytes as u64;
            self.check(total)?;
            hasher.update(&chunk);
            // The other side stops early when it has found an error, which then is the one that counts.
            if self.send.send(chunk).is_err() {
                return Err(UnpackError::corrupt("unpacking has stopped".into()));
            }
        }
    }

    fn check(&self, total: u64) -> Result<(), UnpackError> {
        let LayerLimits { bytes_max, ratio_max, ratio_free_bytes, .. } = self.limits;
        if total > bytes_max {
            return Err(UnpackError::TooLarge { what: "its unpacked size in bytes".into(), limit: bytes_max });
        }
        let compressed = self.compressed.load(Relaxed);
        if total > ratio_free_bytes.saturating_add(compressed.saturating_mul(ratio_max)) {
            return Err(UnpackError::TooLarge {
                what: "its compression ratio (it may be a bomb)".into(),
                limit: ratio_max,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Seek as _, Write as _};

    use super::*;

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(bytes).expect("written");
        file.rewind().expect("at its start");
        file
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(bytes).expect("memory");
        encoder.finish().expect("memory")
    }

    fn inflate(bytes: &[u8], limits: &LayerLimits) -> Result<(Vec<u8>, Digest), UnpackError> {
        let mut stream = TarStream::start(file(bytes), "", limits)?;
        let mut text = Vec::new();
        stream.read_to_end(&mut text).expect("a channel");
        stream.finish().map(|digest| (text, digest))
    }

    #[test]
    fn each_compression_is_found_by_its_bytes() {
        let text = vec![b'x'; 700_000];
        let twice = [gzip(&text), gzip(&text)].concat();
        let zstd = zstd::encode_all(text.as_slice(), 1).expect("memory");
        for (bytes, expected) in [(text.clone(), text.clone()), (twice, text.repeat(2)), (zstd, text.clone())] {
            let (inflated, digest) = inflate(&bytes, &LayerLimits::default()).expect("valid");
            assert!(inflated == expected);
            assert_eq!(digest, Digest::of(&expected));
        }
    }

    #[test]
    fn bomb_is_stopped_by_its_ratio() {
        let limits = LayerLimits { ratio_free_bytes: 1 << 20, ratio_max: 100, ..LayerLimits::default() };
        let bomb = zstd::encode_all(io::repeat(0).take(64 << 20), 1).expect("memory");
        assert!(matches!(inflate(&bomb, &limits), Err(UnpackError::TooLarge { limit: 100, .. })));
        let limits = LayerLimits { bytes_max: 1 << 20, ..LayerLimits::default() };
        assert!(matches!(inflate(&gzip(&vec![0; 2 << 20]), &limits), Err(UnpackError::TooLarge { .. })));
    }

    #[test]
    fn truncated_stream_is_corrupt() {
        for whole in [gzip(b"some text"), zstd::encode_all(&b"some text"[..], 1).expect("memory")] {
            let cut = inflate(&whole[..whole.len() - 5], &LayerLimits::default());
            assert!(matches!(cut, Err(UnpackError::Corrupt { .. })), "{cut:?}");
        }
    }
}
