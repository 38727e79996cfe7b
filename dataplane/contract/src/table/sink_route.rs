//! A sink behind the events listener, which admits its senders and speaks TLS for it.

use std::sync::Arc;

use crate::stream_admission::StreamAdmission;
use crate::table::DeliveryTarget;

/// An address on the events listener whose requests are passed on. Nothing is stored: the response is the target's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SinkRoute {
    /// Which senders are authorized. `None`: all, without authentication.
    pub admission: Option<Arc<StreamAdmission>>,
    /// Where requests go. Its path is that of the sink itself.
    pub target: DeliveryTarget,
    /// GET of a path below the sink's is passed on too.
    pub has_subresources: bool,
}
