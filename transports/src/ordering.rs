//! The field `ordering` of sources whose messages have an order.

use serde::Deserialize;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Ordering {
    /// One message after the other of each partition or stream.
    #[default]
    Ordered,
    /// Messages with different keys are sent at the same time.
    Unordered,
}
