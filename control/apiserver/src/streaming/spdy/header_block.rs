//! Header blocks: length-prefixed pairs, compressed by one zlib stream for each direction of a connection.

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress};

use super::error::SpdyError;
use super::{HEADER_BLOCK_BYTES_MAX, HEADERS_MAX};

/// The initial dictionary of both sides, from the SPDY/3 specification.
const DICTIONARY: &[u8] = include_bytes!("dictionary.bin");
/// The compressed form of an empty block is some 20 bytes.
const OUTPUT_STEP_BYTES: usize = 256;

/// Names in lower case, and values.
pub type Headers = Vec<(String, String)>;

pub(super) struct Inflater {
    zlib: Decompress,
    has_dictionary: bool,
}

impl Inflater {
    pub(super) fn new() -> Self {
        Self { zlib: Decompress::new(true), has_dictionary: false }
    }

    pub(super) fn read(&mut self, compressed: &[u8]) -> Result<Headers, SpdyError> {
        parse(&self.inflate(compressed)?)
    }

    fn inflate(&mut self, mut input: &[u8]) -> Result<Vec<u8>, SpdyError> {
        let mut block = vec![0; HEADER_BLOCK_BYTES_MAX];
        let mut filled = 0;
        loop {
            let (before_in, before_out) = (self.zlib.total_in(), self.zlib.total_out());
            let result = self.zlib.decompress(input, &mut block[filled..], FlushDecompress::Sync);
            let (read, written) = (self.zlib.total_in() - before_in, self.zlib.total_out() - before_out);
            input = input.get(usize::try_from(read).unwrap_or(usize::MAX)..).unwrap_or_default();
            filled += usize::try_from(written).unwrap_or(usize::MAX);
            match result {
                Err(why) if why.needs_dictionary().is_some() && !self.has_dictionary => {
                    self.zlib.set_dictionary(DICTIONARY).map_err(|_| SpdyError::HeaderCompression)?;
                    self.has_dictionary = true;
                    continue;
                }
                Err(_) => return Err(SpdyError::HeaderCompression),
                Ok(_) => {}
            }
            if filled == block.len() {
                return Err(SpdyError::HeaderBlockTooLarge);
            }
            if input.is_empty() {
                block.truncate(filled);
                return Ok(block);
            }
            if read == 0 && written == 0 {
                return Err(SpdyError::HeaderCompression); // the zlib stream has ended
            }
        }
    }
}

fn parse(block: &[u8]) -> Result<Headers, SpdyError> {
    let mut rest = block;
    let count = take_number(&mut rest)?;
    if count > HEADERS_MAX {
        return Err(SpdyError::TooManyHeaders);
    }
    let mut headers = Vec::with_capacity(count);
    for _ in 0..count {
        headers.push((take_text(&mut rest)?.to_ascii_lowercase(), take_text(&mut rest)?));
    }
    if rest.is_empty() { Ok(headers) } else { Err(SpdyError::MalformedHeaderBlock) }
}

fn take_number(rest: &mut &[u8]) -> Result<usize, SpdyError> {
    let (number, after) = rest.split_first_chunk::<4>().ok_or(SpdyError::MalformedHeaderBlock)?;
    *rest = after;
    usize::try_from(u32::from_be_bytes(*number)).map_err(|_| SpdyError::MalformedHeaderBlock)
}

fn take_text(rest: &mut &[u8]) -> Result<String, SpdyError> {
    let length = take_number(rest)?;
    let (text, after) = rest.split_at_checked(length).ok_or(SpdyError::MalformedHeaderBlock)?;
    *rest = after;
    String::from_utf8(text.to_vec()).map_err(|_| SpdyError::MalformedHeaderBlock)
}

pub(super) struct Deflater {
    zlib: Option<Compress>,
}

impl Deflater {
    pub(super) fn new() -> Self {
        let mut zlib = Compress::new(Compression::fast(), true);
        Self { zlib: zlib.set_dictionary(DICTIONARY).is_ok().then_some(zlib) }
    }

    pub(super) fn write(&mut self, headers: &[(&str, &str)]) -> Result<Vec<u8>, SpdyError> {
        let zlib = self.zlib.as_mut().ok_or(SpdyError::HeaderCompression)?;
        let number = |length: usize| u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes();
        let mut block = number(headers.len()).to_vec();
        for text in headers.iter().flat_map(|(name, value)| [name, value]) {
            block.extend_from_slice(&number(text.len()));
            block.extend_from_slice(text.as_bytes());
        }
        let (mut input, mut output) = (block.as_slice(), Vec::new());
        loop {
            output.reserve(OUTPUT_STEP_BYTES);
            let before = zlib.total_in();
            zlib.compress_vec(input, &mut output, FlushCompress::Sync).map_err(|_| SpdyError::HeaderCompression)?;
            input = input.get(usize::try_from(zlib.total_in() - before).unwrap_or(usize::MAX)..).unwrap_or_default();
            if input.is_empty() && output.len() < output.capacity() {
                return Ok(output);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_is_read_as_it_was_written() {
        let (mut write, mut read) = (Deflater::new(), Inflater::new());
        let long = "x".repeat(5000);
        for headers in [&[][..], &[("streamtype", "error")], &[("streamtype", "stdin"), ("port", &long)]] {
            let owned: Headers = headers.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
            assert_eq!(read.read(&write.write(headers).unwrap()).unwrap(), owned);
        }
    }

    #[test]
    fn dictionary_is_the_specification_s() {
        let checksum = DICTIONARY.iter().fold((1_u32, 0_u32), |(a, b), byte| {
            let a = (a + u32::from(*byte)) % 65_521;
            (a, (b + a) % 65_521)
        });
        assert_eq!(checksum.1 << 16 | checksum.0, 0xe3c6_a7c2); // in the zlib header of every SPDY/3 client
    }

    #[test]
    fn block_that_inflates_past_the_limit_is_refused() {
        let long = "x".repeat(HEADER_BLOCK_BYTES_MAX);
        let bomb = Deflater::new().write(&[("a", &long)]).unwrap();
        assert!(bomb.len() < 1024);
        assert_eq!(Inflater::new().read(&bomb), Err(SpdyError::HeaderBlockTooLarge));
    }

    #[test]
    fn malformed_block_is_refused() {
        for (block, why) in [
            (&b""[..], SpdyError::MalformedHeaderBlock),
            (&[0, 0, 0, 1], SpdyError::MalformedHeaderBlock),
            (&[0, 0, 0, 33], SpdyError::TooManyHeaders),
            (&[0xff; 4], SpdyError::TooManyHeaders),
            (&[0, 0, 0, 0, 1], SpdyError::MalformedHeaderBlock),
            (&[0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff], SpdyError::MalformedHeaderBlock),
            (&[0, 0, 0, 1, 0, 0, 0, 1, 0xff, 0, 0, 0, 0], SpdyError::MalformedHeaderBlock),
        ] {
            assert_eq!(parse(block), Err(why), "{block:?}");
        }
        assert_eq!(Inflater::new().read(b"no zlib"), Err(SpdyError::HeaderCompression));
    }
}
