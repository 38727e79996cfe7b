//! Header compression (RFC 7541): an [`HpackDecoder`], and an [`HpackEncoder`] that remembers what it sent.

mod decoder;
mod dynamic_table;
mod encoder;
pub mod huffman;
mod integer;
mod static_table;

pub use decoder::HpackDecoder;
pub use encoder::{HpackEncoder, RequestPseudoFields};

/// Overhead of a field beyond its name and value (RFC 7541 4.1).
pub const FIELD_OVERHEAD: usize = 32;

/// Why a header block cannot be decoded. All end the connection, because the state of compression is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HpackError {
    #[error("the block ends inside of a field")]
    Truncated,
    #[error("an integer is too large")]
    Integer,
    #[error("an index is in neither table")]
    Index,
    #[error("a string has an invalid Huffman code")]
    Huffman,
    #[error("the fields are much larger than any that are accepted")]
    FieldBytes,
    #[error("a size update of the table is too large, or not at the beginning of the block")]
    TableSize,
}
