//! Copies of requests for another backend.

use super::filter_destination::FilterDestination;

/// Copies of requests, sent after the client has its response.
#[derive(Debug, Clone)]
pub struct MirrorPolicy {
    pub destination: FilterDestination,
    pub fraction: MirrorFraction,
}

/// Which part of the requests is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MirrorFraction {
    numerator: u32,
    denominator: u32,
}

impl MirrorFraction {
    /// All requests.
    pub const ALL: Self = Self { numerator: 1, denominator: 1 };

    /// `None`: the denominator is 0, or smaller than the numerator.
    #[must_use]
    pub fn new(numerator: u32, denominator: u32) -> Option<Self> {
        (denominator > 0 && numerator <= denominator).then_some(Self { numerator, denominator })
    }

    /// More than 100 counts as 100.
    #[must_use]
    pub fn percent(percent: u8) -> Self {
        Self { numerator: percent.min(100).into(), denominator: 100 }
    }

    /// Whether a request is copied. `chance` is a random number below its argument.
    pub fn draw(self, chance: impl FnOnce(u32) -> u32) -> bool {
        self.numerator == self.denominator || chance(self.denominator) < self.numerator
    }
}

/// Which mirrors of its share a request is copied to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MirrorSet(u32);

impl MirrorSet {
    /// The mirrors that a set can tell apart: a rule of an HTTPRoute has 16 filters at most, and so has each of its backends.
    pub const MIRRORS_MAX: usize = u32::BITS as usize;

    /// Decides for each mirror. `chance` makes random numbers below its argument.
    #[must_use]
    pub fn draw(mirrors: &[MirrorPolicy], mut chance: impl FnMut(u32) -> u32) -> Self {
        let all = mirrors.iter().take(Self::MIRRORS_MAX).enumerate();
        Self(all.fold(0, |set, (at, mirror)| set | u32::from(mirror.fraction.draw(&mut chance)) << at))
    }

    #[inline]
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The positions of its mirrors.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..Self::MIRRORS_MAX).filter(move |at| self.0 >> at & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fraction_draws_its_part_of_the_chances() {
        let drawn = |fraction: MirrorFraction, of: u32| (0..of).filter(|chance| fraction.draw(|_| *chance)).count();
        assert_eq!(drawn(MirrorFraction::percent(20), 100), 20);
        assert_eq!(drawn(MirrorFraction::percent(0), 100), 0);
        assert_eq!(drawn(MirrorFraction::percent(255), 100), 100);
        assert_eq!(drawn(MirrorFraction::new(1, 3).unwrap(), 3), 1);
        assert_eq!(drawn(MirrorFraction::ALL, 9), 9);
        let mirror = |fraction| MirrorPolicy { destination: FilterDestination::Host("a".into()), fraction };
        let mirrors = [0, 100, 0, 100].map(|percent| mirror(MirrorFraction::percent(percent)));
        assert_eq!(MirrorSet::draw(&mirrors, |_| 0).iter().collect::<Vec<_>>(), [1, 3]);
        let many: Vec<_> = (0..40).map(|_| mirror(MirrorFraction::ALL)).collect();
        assert_eq!(MirrorSet::draw(&many, |_| 0).iter().count(), MirrorSet::MIRRORS_MAX);
        assert!(MirrorFraction::new(1, 0).is_none() && MirrorFraction::new(2, 1).is_none());
    }
}
