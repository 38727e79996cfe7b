//! The time at which a broker accepted an event, as its attribute.

use std::rc::Rc;

use codec::cloudevent::{AttributeKind, CloudEventAttribute};
use codec::record::{ARRIVAL_ATTRIBUTE, time_text};

/// When the broker accepted the event (X-BRK-05).
pub(super) fn arrival(time: &str) -> CloudEventAttribute<'_> {
    CloudEventAttribute { name: ARRIVAL_ATTRIBUTE.into(), value: time.into(), kind: AttributeKind::String }
}

/// The last formatted time: an event goes to many subscribers, and events to one subscriber often arrived
/// in the same millisecond.
#[derive(Debug, Default)]
pub(super) struct CachedTimestamp {
    last: Option<(u64, Rc<str>)>,
}

impl CachedTimestamp {
    /// Milliseconds since 1970 in RFC 3339 format; `None` if it is no valid date.
    pub(super) fn text(&mut self, ms: u64) -> Option<Rc<str>> {
        if let Some((_, text)) = self.last.as_ref().filter(|(last, _)| *last == ms) {
            return Some(Rc::clone(text));
        }
        let text = Rc::from(time_text(ms)?);
        self.last = Some((ms, Rc::clone(&text)));
        Some(text)
    }
}
