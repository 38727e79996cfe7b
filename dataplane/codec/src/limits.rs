//! The limits of one event, each with its unit and its reason.

/// Attributes in one event. Real ones have about ten; every filter may check every one.
pub const ATTRIBUTES_MAX: usize = 256;

/// Maximum number of attributes of an event in binary mode, each a header field: there are some other
/// fields, and many servers (ours too) accept a hundred. An event with more is sent in an envelope,
/// whatever mode is configured.
pub const BINARY_ATTRIBUTES_MAX: usize = 80;

/// Maximum size of these fields together, in bytes: servers accept heads of some 32 KiB.
pub const BINARY_FIELDS_BYTES_MAX: usize = 24 << 10;

/// Largest attributes of an event, in bytes, names and values together: the specification asks for small ones, and
/// servers accept heads of 8 to 64 KiB. Every filter may read them all.
pub const ATTRIBUTES_BYTES_MAX: usize = 256 << 10;

/// Size of attributes added by streams (arrival time, delivery failure) that does not count against the
/// limit of the next stream, in bytes: two URLs and the response of a failed delivery.
pub const ADDED_BYTES_MAX: usize = 4 << 10;

/// Longest attribute name, in bytes: its length is one byte in a record. The specification recommends at
/// most 20.
pub const ATTRIBUTE_NAME_BYTES_MAX: usize = 255;

/// Events in one batch: they become durable together, so a batch must stay well below a segment.
pub const BATCH_EVENTS_MAX: usize = 1000;
