//! The streams of a connection: a slab that is as large as the limit of streams, so that streams cost no allocation
//! after the first ones.

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use crate::error::ErrorCode;
use crate::limits::WINDOW_BYTES_MAX;
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

/// What was sent on a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendingState {
    Head,
    Body,
    Ended,
}

/// One stream.
#[derive(Debug)]
pub(crate) struct StreamSlot {
    pub(crate) id: u32,
    pub(crate) sending: SendingState,
    /// The peer may still send DATA.
    pub(crate) receiving: bool,
    /// The head was received: of a request, or the final one of a response.
    pub(crate) head_received: bool,
    /// The response has no content, whatever length it announces: of HEAD.
    pub(crate) is_head: bool,
    /// The error that ended the stream early.
    pub(crate) reset: Option<ErrorCode>,
    /// The caller has not detached it yet.
    pub(crate) attached: bool,
    /// Bytes that may be sent. Negative after a smaller SETTINGS_INITIAL_WINDOW_SIZE.
    pub(crate) send_window: i64,
    /// Bytes that the peer may send.
    pub(crate) receive_window: u32,
    /// Bytes that were received, and neither released nor returned to the window of the connection.
    pub(crate) unreleased: u32,
    /// Bytes that were released and not announced to the peer.
    pub(crate) unannounced: u32,
    /// Bytes of the body that are still to come, if its head announced them.
    pub(crate) length_left: Option<u64>,
    pub(crate) priority: ResponsePriority,
}

impl StreamSlot {
    fn new(id: u32, send_window: u32, receive_window: u32) -> Self {
        Self {
            id,
            sending: SendingState::Head,
            receiving: true,
            head_received: false,
            is_head: false,
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
        self.reset.is_some() || !self.receiving && self.sending == SendingState::Ended
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
    slots: Vec<StreamSlot>,
    free: Vec<u32>,
    /// Slots of streams that are not closed, by number.
    open: HashMap<u32, u32, RandomState>,
    slots_max: usize,
    /// Numbers of streams that this end reset last, in a circle: as many as there are slots.
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
        let state = StreamSlot::new(id, send_window, receive_window);
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
    pub(crate) fn get(&self, key: StreamKey) -> Option<&StreamSlot> {
        self.slots.get(key.slot()).filter(|stream| stream.id == key.id)
    }

    pub(crate) fn get_mut(&mut self, key: StreamKey) -> Option<&mut StreamSlot> {
        self.slots.get_mut(key.slot()).filter(|stream| stream.id == key.id)
    }

    /// Whether another stream can be opened.
    pub(crate) fn has_free_slot(&self) -> bool {
        !self.free.is_empty() || self.slots.len() < self.slots_max
    }

    /// Closes the open streams with higher numbers than `last`, which the peer does not serve.
    pub(crate) fn close_after(&mut self, last: u32) {
        let (slots, free) = (&mut self.slots, &mut self.free);
        self.open.retain(|id, slot| {
            let is_served = *id <= last;
            let stream = &mut slots[*slot as usize];
            if !is_served {
                stream.reset = Some(ErrorCode::RefusedStream);
            }
            if !is_served && !stream.attached {
                stream.id = 0;
                free.push(*slot);
            }
            is_served
        });
    }

    /// All streams that are not closed.
    pub(crate) fn for_each_open(&mut self, mut each: impl FnMut(&mut StreamSlot)) {
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

    /// This end reset the stream: frames to it that are in flight are no mistake.
    pub(crate) fn remember_reset(&mut self, id: u32) {
        if self.resets.len() < self.slots_max {
            self.resets.push(id);
        } else if let Some(oldest) = self.resets.get_mut(self.next_reset) {
            *oldest = id;
            self.next_reset = (self.next_reset + 1) % self.slots_max;
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
        for id in [1, 3, 5] {
            table.remember_reset(id);
        }
        assert!(!table.was_reset(1) && table.was_reset(3) && table.was_reset(5));
    }

    #[test]
    fn streams_after_the_last_one_are_closed() {
        let mut table = StreamTable::new(3);
        let [first, second, third] = [1, 3, 5].map(|id| table.open(id, 10, 10).unwrap());
        table.get_mut(third).unwrap().attached = false;
        table.close_after(1);
        assert_eq!((table.open_count(), table.find(1)), (1, Some(first)));
        assert_eq!(table.get(second).unwrap().reset, Some(ErrorCode::RefusedStream));
        assert!(table.get(third).is_none() && table.has_free_slot());
    }
}
