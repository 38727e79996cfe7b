//! The estimate for a part of a rule: its cost, and the sizes of its value.

use crate::sizes::SchemaNode;

/// A number of bytes, items or entries.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SizeRange {
    pub(crate) min: u64,
    pub(crate) max: u64,
}

/// Sizes of what is in a list or map.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EntrySizes {
    pub(crate) is_list: bool,
    pub(crate) key: SizeRange,
    pub(crate) value: SizeRange,
}

/// Where a value comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ValueOrigin<'a> {
    /// It was made.
    Computed,
    Schema(SchemaNode<'a>),
    /// From where nothing is known of.
    Unknown,
}

/// The estimate of a part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CostEstimate<'a> {
    pub(crate) cost: u64,
    pub(crate) origin: ValueOrigin<'a>,
    pub(crate) size: Option<SizeRange>,
    pub(crate) entries: Option<EntrySizes>,
}

impl SizeRange {
    pub(crate) const UNKNOWN: Self = Self { min: 0, max: u64::MAX };

    pub(crate) const fn of(number: u64) -> Self {
        Self { min: number, max: number }
    }

    pub(crate) fn or(self, other: Self) -> Self {
        Self { min: self.min.min(other.min), max: self.max.max(other.max) }
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self { min: self.min.saturating_add(other.min), max: self.max.saturating_add(other.max) }
    }

    pub(crate) fn times(self, other: Self) -> Self {
        Self { min: self.min.saturating_mul(other.min), max: self.max.saturating_mul(other.max) }
    }
}

impl EntrySizes {
    pub(crate) fn or(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        let (one, other) = (one?, other?);
        Some(Self { is_list: one.is_list, key: one.key.or(other.key), value: one.value.or(other.value) })
    }
}

impl CostEstimate<'_> {
    pub(crate) fn computed(cost: u64) -> Self {
        Self { cost, origin: ValueOrigin::Computed, size: None, entries: None }
    }

    pub(crate) fn size_or_unknown(&self) -> SizeRange {
        self.size.unwrap_or(SizeRange::UNKNOWN)
    }

    pub(crate) fn most(&self) -> u64 {
        self.size_or_unknown().max
    }
}

/// Rounded up.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "as Kubernetes reckons; a cast of a float saturates"
)]
pub(crate) fn by(size: u64, factor: f64) -> u64 {
    (size as f64 * factor).ceil() as u64
}

pub(crate) fn sum(costs: impl IntoIterator<Item = u64>) -> u64 {
    costs.into_iter().fold(0, u64::saturating_add)
}
