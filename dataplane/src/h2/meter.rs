//! Counts the frames of a connection that cost their sender nothing and us something.
//!
//! h2 bounds the memory that each of them takes; this bounds their rate. It reads along: nine bytes of
//! every frame's head, as they come, whatever pieces they come in. No I/O and no clock.

use ring::Tick;

use super::limits;

/// So many at once, and so many more each second.
#[derive(Debug, Clone, Copy)]
pub struct Allowance {
    pub burst: u32,
    pub each_second: u32,
}

/// Too many frames of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Flood {
    Resets,
    Pings,
    Settings,
    EmptyData,
    Continuations,
    Ignored,
    /// Streams that the client's own faults made us reset (MadeYouReset), which h2 counts; their frames are of usual kinds.
    #[default]
    MadeResets,
}

impl Flood {
    /// Names in metrics and logs, in the order of the variants.
    pub const NAMES: [&'static str; 7] =
        ["resets", "pings", "settings", "empty_data", "continuations", "ignored", "made_resets"];

    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

const ALLOWED: [(Flood, Allowance); 6] = [
    (Flood::Resets, limits::RESETS),
    (Flood::Pings, limits::PINGS),
    (Flood::Settings, limits::SETTINGS),
    (Flood::EmptyData, limits::EMPTY_DATA),
    (Flood::Continuations, limits::CONTINUATIONS),
    (Flood::Ignored, limits::IGNORED),
];

const HEAD_BYTES: usize = 9;
const ACK: u8 = 0x1;
const END_STREAM: u8 = 0x1;

/// One connection's meter.
#[derive(Debug)]
pub struct Meter {
    /// Bytes before the next frame's head: the preface at first, then payloads.
    skip: usize,
    head: [u8; HEAD_BYTES],
    /// Bytes of `head` that have come.
    known: usize,
    /// By kind, in the order of [`ALLOWED`].
    left: [u32; ALLOWED.len()],
    refilled: Tick,
}

impl Meter {
    /// `preface` bytes come before the first frame.
    #[must_use]
    pub fn new(preface: usize, now: Tick) -> Self {
        Self {
            skip: preface,
            head: [0; HEAD_BYTES],
            known: 0,
            left: ALLOWED.map(|(_, allowance)| allowance.burst),
            refilled: now,
        }
    }

    /// Takes the next bytes that came.
    pub fn read(&mut self, mut bytes: &[u8], now: Tick) -> Result<(), Flood> {
        self.refill(now);
        loop {
            let skipped = self.skip.min(bytes.len());
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
                self.frame()?;
            }
        }
    }

    /// What it was, when h2 met a limit of its own before one of these, and does not say which: what most was spent of.
    #[must_use]
    pub fn suspect(&self) -> Flood {
        let spent = |kind: Flood| {
            let burst = ALLOWED[kind as usize].1.burst;
            (burst - self.left[kind as usize]) * 1000 / burst
        };
        let known_to_h2 = [Flood::Resets, Flood::EmptyData, Flood::Continuations];
        let most = known_to_h2.into_iter().max_by_key(|kind| spent(*kind));
        most.filter(|kind| spent(*kind) > 0).unwrap_or(Flood::MadeResets)
    }

    fn frame(&mut self) -> Result<(), Flood> {
        let [high, middle, low, kind, flags, ..] = self.head;
        self.skip = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        let counted = match kind {
            0x0 if self.skip == 0 && flags & END_STREAM == 0 => Flood::EmptyData,
            0x3 => Flood::Resets,
            0x4 if flags & ACK == 0 => Flood::Settings,
            0x6 if flags & ACK == 0 => Flood::Pings,
            0x9 => Flood::Continuations,
            0x2 | 0xa.. => Flood::Ignored,
            _ => return Ok(()),
        };
        let left = &mut self.left[counted as usize];
        *left = left.checked_sub(1).ok_or(counted)?;
        Ok(())
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn frame(kind: u8, flags: u8, payload: usize) -> Vec<u8> {
        let mut bytes = vec![0, (payload >> 8) as u8, payload as u8, kind, flags, 0, 0, 0, 1];
        bytes.resize(HEAD_BYTES + payload, 0xff); // looks like frames if it were read as such
        bytes
    }

    /// How many of these frames pass, in pieces of `piece` bytes.
    fn passed(one: &[u8], piece: usize) -> u32 {
        let mut meter = Meter::new(0, Tick::default());
        for count in 0..20_000 {
            for part in one.chunks(piece) {
                if meter.read(part, Tick::default()).is_err() {
                    return count;
                }
            }
        }
        20_000
    }

    #[test]
    fn each_kind_has_its_burst_however_the_bytes_are_cut() {
        for (one, max) in [
            (frame(0x3, 0, 4), limits::RESETS.burst),
            (frame(0x6, 0, 8), limits::PINGS.burst),
            (frame(0x4, 0, 6), limits::SETTINGS.burst),
            (frame(0x0, 0, 0), limits::EMPTY_DATA.burst),
            (frame(0x9, 0, 0), limits::CONTINUATIONS.burst),
            (frame(0x2, 0, 5), limits::IGNORED.burst),
            (frame(0xff, 0, 300), limits::IGNORED.burst),
        ] {
            for piece in [1, 7, 1000] {
                assert_eq!(passed(&one, piece), max, "kind {} in {piece}", one[3]);
            }
        }
    }

    #[test]
    fn who_is_cut_by_h2_is_suspected_of_what_he_sent_most_of() {
        for (frames, flood) in [
            (vec![], Flood::MadeResets),
            (frame(0x8, 0, 4).repeat(500), Flood::MadeResets),
            ([frame(0x6, 0, 8).repeat(500), frame(0x3, 0, 4).repeat(20)].concat(), Flood::Resets),
            (frame(0x0, 0, 0).repeat(100), Flood::EmptyData),
            ([frame(0x3, 0, 4).repeat(2), frame(0x9, 0, 0).repeat(5)].concat(), Flood::Continuations),
        ] {
            let mut meter = Meter::new(0, Tick::default());
            meter.read(&frames, Tick::default()).unwrap();
            assert_eq!(meter.suspect(), flood);
        }
    }

    #[test]
    fn what_carries_a_request_is_not_counted() {
        for one in [
            frame(0x0, 0, 1),
            frame(0x0, END_STREAM, 0),
            frame(0x1, 0, 30),
            frame(0x8, 0, 4),
            frame(0x4, ACK, 0),
            frame(0x6, ACK, 8),
        ] {
            assert_eq!(passed(&one, 100), 20_000, "kind {}", one[3]);
        }
    }

    #[test]
    fn time_gives_back_and_never_more_than_the_burst() {
        let reset = frame(0x3, 0, 4);
        let mut meter = Meter::new(24, Tick::default());
        assert_eq!(meter.read(&[0x3; 24], Tick::default()), Ok(()));
        let all = reset.repeat(limits::RESETS.burst as usize);
        assert_eq!(meter.read(&all, Tick::default()), Ok(()));
        let later = Tick::default() + Duration::from_secs(1);
        assert_eq!(meter.read(&reset.repeat(limits::RESETS.each_second as usize), later), Ok(()));
        assert_eq!(meter.read(&reset, later), Err(Flood::Resets));
        let much_later = later + Duration::from_secs(3600);
        let mut meter = Meter::new(0, later);
        assert_eq!(meter.read(&all, much_later), Ok(()));
        assert_eq!(meter.read(&reset, much_later), Err(Flood::Resets));
    }
}
