//! The streams of a connection: a slab that is as large as the limit of streams, so that streams cost no allocation
//! after the first ones.

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use crate::error::ErrorCode;
use crate::limits::{RESET_STREAMS_REMEMBERED, WINDOW_BYTES_MAX};
use crate::priority::ResponsePriority;

/// Identifies a stream, also after it has ended: a slot that is used again has another stream's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StreamKey {
    slot: u32,
    id: u32,
}

impl StreamKey {
    /// The number of the stream (RFC 9113 5.1.1).
    #[must_use]
    pub fn id(self) -> u32 {
        self.id
    }

    /// A number below the limit of slots that no other stream has while this one is attached.
    #[must_use]
    pub fn slot(self) -> usize {
        self.slot as usize
    }
}

/// What was sent of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResponseState {
    Head,
    Body,
    Ended,
}

/// One stream.
#[derive(Debug)]
pub(crate) struct ServerStream {
    pub(crate) id: u32,
    pub(crate) response: ResponseState,
    /// The client may still send DATA.
    pub(crate) receiving: bool,
    /// The error that ended the stream early.
    pub(crate) reset: Option<ErrorCode>,
    /// The caller has not detached it yet.
    pub(crate) attached: bool,
    /// Bytes that may be sent. Negative after a smaller SETTINGS_INITIAL_WINDOW_SIZE.
    pub(crate) send_window: i64,
    /// Bytes that the client may send.
    pub(crate) receive_window: u32,
    /// Bytes that were received, and neither released nor returned to the window of the connection.
    pub(crate) unreleased: u32,
    /// Bytes that were released and not announced to the client.
    pub(crate) unannounced: u32,
    /// Bytes of the body that are still to come, if the request announced them.
    pub(crate) length_left: Option<u64>,
    pub(crate) priority: ResponsePriority,
}

impl ServerStream {
    fn new(id: u32, send_window: u32, receive_window: u32) -> Self {
        Self {
            id,
            response: ResponseState::Head,
            receiving: true,
            reset: None,
            attached: true,
            send_window: i64::from(send_window),
            receive_window,
            unreleased: 0,
            unannounced: 0,
            length_left: None,
            priority: ResponsePriority::default(),
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.reset.is_some() || !self.receiving && self.response == ResponseState::Ended
    }
}

/// Adds to a window, unless it would become too large.
pub(crate) fn grow(window: &mut i64, by: i64) -> bool {
    let fits = *window + by <= WINDOW_BYTES_MAX;
    if fits {
        *window += by;
    }
    fits
}

/// The streams of one connection.
#[derive(Debug)]
pub(crate) struct StreamTable {
    slots: Vec<ServerStream>,
    free: Vec<u32>,
    /// Slots of streams that are not closed, by number.
    open: HashMap<u32, u32, RandomState>,
    slots_max: usize,
    /// Numbers of streams that the server reset last, in a circle.
    resets: Vec<u32>,
    next_reset: usize,
}

impl StreamTable {
    pub(crate) fn new(slots_max: usize) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            open: HashMap::default(),
            slots_max,
            resets: Vec::new(),
            next_reset: 0,
        }
    }

    /// Streams that are not closed.
    pub(crate) fn open_count(&self) -> usize {
        self.open.len()
    }

    /// Opens a stream. `None`: all slots are taken, some by streams that have ended and are still attached.
    pub(crate) fn open(&mut self, id: u32, send_window: u32, receive_window: u32) -> Option<StreamKey> {
        let state = ServerStream::new(id, send_window, receive_window);
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = state;
                slot
            }
            None if self.slots.len() < self.slots_max => {
                self.slots.push(state);
                (self.slots.len() - 1) as u32
            }
            None => return None,
        };
        self.open.insert(id, slot);
        Some(StreamKey { slot, id })
    }

    /// The stream with this number, if it is not closed.
    pub(crate) fn find(&self, id: u32) -> Option<StreamKey> {
        self.open.get(&id).map(|slot| StreamKey { slot: *slot, id })
    }

    /// The stream, if it is attached or not closed.
    pub(crate) fn get(&self, key: StreamKey) -> Option<&ServerStream> {
        self.slots.get(key.slot()).filter(|stream| stream.id == key.id)
    }

    pub(crate) fn get_mut(&mut self, key: StreamKey) -> Option<&mut ServerStream> {
        self.slots.get_mut(key.slot()).filter(|stream| stream.id == key.id)
    }

    /// All streams that are not closed.
    pub(crate) fn for_each_open(&mut self, mut each: impl FnMut(&mut ServerStream)) {
        for slot in self.open.values() {
            each(&mut self.slots[*slot as usize]);
        }
    }

    /// Called after each change: forgets the number of a closed stream, and frees the slot of one that is detached.
    pub(crate) fn settle(&mut self, key: StreamKey) {
        let Some(stream) = self.slots.get_mut(key.slot()).filter(|stream| stream.id == key.id) else { return };
        if !stream.is_closed() {
            return;
        }
        self.open.remove(&key.id);
        if !stream.attached {
            stream.id = 0;
            self.free.push(key.slot);
        }
    }

    /// The server reset this stream: frames to it that are in flight are no mistake.
    pub(crate) fn remember_reset(&mut self, id: u32) {
        if self.resets.len() < RESET_STREAMS_REMEMBERED {
            self.resets.push(id);
        } else {
            self.resets[self.next_reset] = id;
            self.next_reset = (self.next_reset + 1) % RESET_STREAMS_REMEMBERED;
        }
    }

    pub(crate) fn was_reset(&self, id: u32) -> bool {
        self.resets.contains(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_is_used_again_only_when_closed_and_detached() {
        let mut table = StreamTable::new(2);
        let first = table.open(1, 10, 10).unwrap();
        table.open(3, 10, 10).unwrap();
        assert_eq!(table.open(5, 10, 10), None);

        table.get_mut(first).unwrap().reset = Some(ErrorCode::Cancel);
        table.settle(first);
        assert_eq!((table.find(1), table.open_count()), (None, 1));
        assert_eq!(table.open(5, 10, 10), None);

        table.get_mut(first).unwrap().attached = false;
        table.settle(first);
        let later = table.open(5, 10, 10).unwrap();
        assert_eq!(later.slot(), first.slot());
        assert!(table.get(first).is_none() && table.get(later).is_some());
        table.settle(first); // of a stream that is gone
        assert_eq!(table.find(5), Some(later));
    }

    #[test]
    fn last_resets_are_remembered() {
        let mut table = StreamTable::new(2);
        for id in 0..=RESET_STREAMS_REMEMBERED as u32 {
            table.remember_reset(id);
        }
        assert!(!table.was_reset(0) && table.was_reset(1) && table.was_reset(RESET_STREAMS_REMEMBERED as u32));
    }
}
