//! Counts the frames of a connection that cost their sender nothing and the gateway something.
//!
//! h2 bounds the memory of each; this bounds their rate. It parses the nine bytes of every frame header as they arrive,
//! however the bytes are split. No I/O and no clock.

use contract::counters::FLOOD_KINDS;
use ring::Tick;

use super::limits;
use super::trailer_scan::TrailerScan;

/// A kind of frame flood.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FloodKind {
    Resets,
    Pings,
    Settings,
    EmptyData,
    Continuations,
    Ignored,
    WindowUpdates,
    /// More of them than may be buffered, as counted by h2.
    SmallData,
    /// Streams that a client's own faults made the gateway reset (MadeYouReset), as counted by h2. Their frames are of
    /// usual kinds.
    #[default]
    MadeResets,
}

impl FloodKind {
    /// Names in metrics and logs, in the order of the variants.
    pub const NAMES: [&'static str; FLOOD_KINDS] = [
        "resets",
        "pings",
        "settings",
        "empty_data",
        "continuations",
        "ignored",
        "window_updates",
        "small_data",
        "own_resets",
    ];

    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

/// Why a connection is closed because of its frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FloodViolation {
    Flood(FloodKind),
    /// A frame of a length that its type never has (RFC 9113 4.2). h2 finds it too, and mostly reports another error.
    FrameSize,
}

const ALLOWED: [(FloodKind, limits::RateAllowance); 8] = [
    (FloodKind::Resets, limits::RESETS),
    (FloodKind::Pings, limits::PINGS),
    (FloodKind::Settings, limits::SETTINGS),
    (FloodKind::EmptyData, limits::EMPTY_DATA),
    (FloodKind::Continuations, limits::CONTINUATIONS),
    (FloodKind::Ignored, limits::IGNORED),
    (FloodKind::WindowUpdates, limits::WINDOW_UPDATES),
    (FloodKind::SmallData, limits::SMALL_DATA),
];

const HEAD_BYTES: usize = 9;
/// The bit before a stream's number.
const RESERVED: u32 = 1 << 31;
const ACK: u8 = 0x1;
const END_STREAM: u8 = 0x1;
/// DATA of fewer bytes counts as small in h2: its overhead is larger than its content.
const SMALL_BYTES: usize = 256;

/// The flood guard of one connection.
#[derive(Debug)]
pub struct FloodGuard {
    /// Bytes before the next frame header: first the preface, then payloads.
    skip: usize,
    head: [u8; HEAD_BYTES],
    /// Bytes of `head` that were received.
    known: usize,
    /// Remaining allowance by kind, in the order of [`ALLOWED`].
    left: [u32; ALLOWED.len()],
    /// HEADERS frames since the last one that earned a reset.
    heads: u32,
    refilled: Tick,
    /// The last stream that HEADERS opened: HEADERS on this or an earlier one are trailers.
    stream: u32,
    /// The trailers whose beginning is being scanned.
    scan: Option<(u32, TrailerScan)>,
    /// Streams whose trailers begin with a pseudo-field.
    malformed: Vec<u32>,
}

impl FloodGuard {
    /// `preface` bytes precede the first frame.
    #[must_use]
    pub fn new(preface: usize, now: Tick) -> Self {
        Self {
            skip: preface,
            head: [0; HEAD_BYTES],
            known: 0,
            left: ALLOWED.map(|(_, allowance)| allowance.burst),
            heads: 0,
            refilled: now,
            stream: 0,
            scan: None,
            malformed: Vec::new(),
        }
    }

    /// Streams whose trailers were found to be malformed since the last call.
    pub fn take_malformed(&mut self) -> impl Iterator<Item = u32> {
        self.malformed.drain(..)
    }

    /// Reads the next bytes. On a violation returns how many of them precede the offending frame.
    pub fn read(&mut self, mut bytes: &[u8], now: Tick) -> Result<(), (usize, FloodViolation)> {
        self.refill(now);
        let all = bytes.len();
        loop {
            let skipped = self.skip.min(bytes.len());
            if let Some((stream, scan)) = &mut self.scan {
                if scan.finds_pseudo(&bytes[..skipped]) {
                    self.malformed.push(*stream);
                }
                if skipped == self.skip {
                    self.scan = None;
                }
            }
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            if bytes.is_empty() {
                return Ok(());
            }
            let taken = (HEAD_BYTES - self.known).min(bytes.len());
            self.head[self.known..self.known + taken].copy_from_slice(&bytes[..taken]);
            self.known += taken;
            bytes = &bytes[taken..];
            if self.known == HEAD_BYTES {
                self.known = 0;
                self.frame().map_err(|violation| (all - bytes.len() - taken, violation))?;
            }
        }
    }

    /// `bytes` were sent to the peer: it may acknowledge them with WINDOW_UPDATE.
    pub fn sent(&mut self, bytes: u64) {
        let more = u32::try_from(bytes / limits::WINDOW_UPDATE_BYTES).unwrap_or(u32::MAX);
        self.allow(FloodKind::WindowUpdates, more);
    }

    /// The likely kind of flood when h2 met its own limit first, which does not name it: the kind with the most spent
    /// allowance.
    #[must_use]
    pub fn suspect(&self) -> FloodKind {
        let spent = |kind: FloodKind| {
            let burst = ALLOWED[kind as usize].1.burst;
            (burst - self.left[kind as usize]) * 1000 / burst
        };
        let known_to_h2 = [FloodKind::Resets, FloodKind::EmptyData, FloodKind::Continuations, FloodKind::SmallData];
        let most = known_to_h2.into_iter().max_by_key(|kind| spent(*kind));
        most.filter(|kind| spent(*kind) > 0).unwrap_or(FloodKind::MadeResets)
    }

    fn frame(&mut self) -> Result<(), FloodViolation> {
        let [high, middle, low, kind, flags, stream @ ..] = self.head;
        self.skip = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        if !is_length(kind, flags, self.skip) {
            return Err(FloodViolation::FrameSize);
        }
        let counted = match kind {
            0x0 if flags & END_STREAM != 0 => return Ok(()),
            0x0 if self.skip == 0 => FloodKind::EmptyData,
            0x0 if self.skip < SMALL_BYTES => FloodKind::SmallData,
            0x1 => {
                self.head_began();
                let stream = u32::from_be_bytes(stream) & !RESERVED;
                match stream > self.stream {
                    true => self.stream = stream,
                    false => self.scan = Some((stream, TrailerScan::new(flags))),
                }
                return Ok(());
            }
            0x3 => FloodKind::Resets,
            0x4 if flags & ACK == 0 => FloodKind::Settings,
            0x6 if flags & ACK == 0 => FloodKind::Pings,
            0x8 => FloodKind::WindowUpdates,
            0x9 => FloodKind::Continuations,
            0x2 | 0x6 | 0x7 | 0xa.. => FloodKind::Ignored,
            _ => return Ok(()),
        };
        let left = &mut self.left[counted as usize];
        match left.checked_sub(1) {
            Some(less) => *left = less,
            // Small frames that are read as they come may be any number.
            None if counted == FloodKind::SmallData => {}
            None => return Err(FloodViolation::Flood(counted)),
        }
        Ok(())
    }

    /// Adds the allowance that comes with each HEADERS frame.
    fn head_began(&mut self) {
        self.allow(FloodKind::Continuations, limits::CONTINUATIONS_OF_A_HEAD);
        self.heads += 1;
        if self.heads == limits::REQUESTS_FOR_A_RESET {
            self.heads = 0;
            self.allow(FloodKind::Resets, 1);
        }
    }

    fn allow(&mut self, kind: FloodKind, more: u32) {
        let left = &mut self.left[kind as usize];
        *left = left.saturating_add(more).min(ALLOWED[kind as usize].1.burst);
    }

    fn refill(&mut self, now: Tick) {
        let seconds = u32::try_from((now - self.refilled).as_secs()).unwrap_or(u32::MAX);
        if seconds == 0 {
            return;
        }
        self.refilled = now;
        for (left, (_, allowance)) in self.left.iter_mut().zip(ALLOWED) {
            let more = allowance.each_second.saturating_mul(seconds);
            *left = left.saturating_add(more).min(allowance.burst);
        }
    }
}

/// Whether a frame of this type may have this length.
fn is_length(kind: u8, flags: u8, bytes: usize) -> bool {
    match kind {
        0x2 => bytes == 5,
        0x3 | 0x8 => bytes == 4,
        0x4 if flags & ACK != 0 => bytes == 0,
        0x4 => bytes.is_multiple_of(6),
        0x6 => bytes == 8,
        0x7 => bytes >= 8,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// More than the allowance of any kind.
    const ENDLESS: u32 = 100_000;

    fn frame(kind: u8, flags: u8, payload: usize) -> Vec<u8> {
        let mut bytes = vec![0, (payload >> 8) as u8, payload as u8, kind, flags, 0, 0, 0, 1];
        bytes.resize(HEAD_BYTES + payload, 0xff); // looks like frames if it were parsed
        bytes
    }

    /// How many of these frames pass, in pieces of `piece` bytes.
    fn passed(one: &[u8], piece: usize) -> u32 {
        let mut flood_guard = FloodGuard::new(0, Tick::default());
        for count in 0..ENDLESS {
            for part in one.chunks(piece) {
                if flood_guard.read(part, Tick::default()).is_err() {
                    return count;
                }
            }
        }
        ENDLESS
    }

    #[test]
    fn each_kind_has_its_burst_for_any_split() {
        for (one, max) in [
            (frame(0x3, 0, 4), limits::RESETS.burst),
            (frame(0x6, 0, 8), limits::PINGS.burst),
            (frame(0x4, 0, 6), limits::SETTINGS.burst),
            (frame(0x0, 0, 0), limits::EMPTY_DATA.burst),
            (frame(0x9, 0, 0), limits::CONTINUATIONS.burst),
            (frame(0x2, 0, 5), limits::IGNORED.burst),
            (frame(0xff, 0, 300), limits::IGNORED.burst),
            (frame(0x6, ACK, 8), limits::IGNORED.burst),
            (frame(0x7, 0, 8), limits::IGNORED.burst),
            (frame(0x8, 0, 4), limits::WINDOW_UPDATES.burst),
        ] {
            for piece in [1, 7, 1000] {
                assert_eq!(passed(&one, piece), max, "kind {} in {piece}", one[3]);
            }
        }
    }

    #[test]
    fn suspect_is_the_kind_with_most_spent_allowance() {
        for (frames, flood) in [
            (vec![], FloodKind::MadeResets),
            (frame(0x8, 0, 4).repeat(500), FloodKind::MadeResets),
            ([frame(0x6, 0, 8).repeat(500), frame(0x3, 0, 4).repeat(20)].concat(), FloodKind::Resets),
            (frame(0x0, 0, 0).repeat(100), FloodKind::EmptyData),
            ([frame(0x0, 0, 9).repeat(40_000), frame(0x0, 0, 0)].concat(), FloodKind::SmallData),
            ([frame(0x3, 0, 4).repeat(2), frame(0x9, 0, 0).repeat(5)].concat(), FloodKind::Continuations),
        ] {
            let mut flood_guard = FloodGuard::new(0, Tick::default());
            flood_guard.read(&frames, Tick::default()).unwrap();
            assert_eq!(flood_guard.suspect(), flood);
        }
    }

    #[test]
    fn frames_that_carry_requests_are_not_counted() {
        for one in [frame(0x0, 0, 1), frame(0x0, END_STREAM, 0), frame(0x1, 0, 30), frame(0x4, ACK, 0)] {
            assert_eq!(passed(&one, 100), ENDLESS, "kind {}", one[3]);
        }
    }

    /// The least efficient client answers each DATA frame with two updates, and may do so forever.
    #[test]
    fn window_updates_for_sent_data_are_free() {
        let mut flood_guard = FloodGuard::new(0, Tick::default());
        let two = frame(0x8, 0, 4).repeat(2);
        for _ in 0..ENDLESS {
            flood_guard.sent(HEAD_BYTES as u64 + 1);
            assert_eq!(flood_guard.read(&two, Tick::default()), Ok(()));
        }
        flood_guard.sent(u64::MAX);
        let one = frame(0x8, 0, 4);
        let all = one.repeat(limits::WINDOW_UPDATES.burst as usize);
        let more = [&all[..], &one].concat();
        let violation = (all.len(), FloodViolation::Flood(FloodKind::WindowUpdates));
        assert_eq!(flood_guard.read(&more, Tick::default()), Err(violation));
    }

    /// Large heads and a few cancelled requests are the usual traffic of a proxy in front of the gateway.
    #[test]
    fn frames_of_requests_are_free_and_rapid_resets_are_not() {
        let (head, more, reset) = (frame(0x1, 0, 30), frame(0x9, 0, 9), frame(0x3, 0, 4));
        assert_eq!(passed(&[&head[..], &more, &more].concat(), 100), ENDLESS);
        assert_eq!(passed(&[head.repeat(4), reset.clone()].concat(), 100), ENDLESS);
        let rapid = passed(&[head, reset].concat(), 100);
        assert!((limits::RESETS.burst..2 * limits::RESETS.burst).contains(&rapid), "{rapid}");
    }

    #[test]
    fn invalid_frame_length_is_a_violation() {
        for (kind, flags, bytes) in
            [(0x2, 0, 4), (0x3, 0, 3), (0x4, 0, 5), (0x4, ACK, 6), (0x6, 0, 7), (0x6, ACK, 9), (0x7, 0, 7), (0x8, 0, 3)]
        {
            let mut flood_guard = FloodGuard::new(0, Tick::default());
            let good = frame(0x1, 0, 30);
            let read = flood_guard.read(&[&good[..], &frame(kind, flags, bytes)].concat(), Tick::default());
            assert_eq!(read, Err((good.len(), FloodViolation::FrameSize)), "kind {kind} of {bytes}");
        }
    }

    #[test]
    fn allowance_refills_up_to_the_burst() {
        let reset = frame(0x3, 0, 4);
        let mut flood_guard = FloodGuard::new(24, Tick::default());
        assert_eq!(flood_guard.read(&[0x3; 24], Tick::default()), Ok(()));
        let all = reset.repeat(limits::RESETS.burst as usize);
        assert_eq!(flood_guard.read(&all, Tick::default()), Ok(()));
        let later = Tick::default() + Duration::from_secs(1);
        assert_eq!(flood_guard.read(&reset.repeat(limits::RESETS.each_second as usize), later), Ok(()));
        assert_eq!(flood_guard.read(&reset, later), Err((0, FloodViolation::Flood(FloodKind::Resets))));
        let much_later = later + Duration::from_secs(3600);
        let mut flood_guard = FloodGuard::new(0, later);
        assert_eq!(flood_guard.read(&all, much_later), Ok(()));
        assert_eq!(flood_guard.read(&reset, much_later), Err((0, FloodViolation::Flood(FloodKind::Resets))));
    }
}
