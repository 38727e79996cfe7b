//! The maximum cost of calls of functions and methods, and the size of their results.

use super::estimate::{CostEstimate, SizeRange, ValueOrigin, by, sum};
use super::{CostEstimator, TEXT};
use crate::CelType;
use crate::parse::{Expr, ExprKind};
use crate::sizes::SchemaStep;
use crate::value::CelValue;

/// The cost of a pattern for each step through a text, per byte of the pattern.
const PATTERN: f64 = 0.25;
/// Bytes of the pattern that a named format is computed to have.
const FORMAT_PATTERN_BYTES: f64 = 128.0;
/// Bytes of an address.
const ADDRESS_BYTES: u64 = 16;

/// A call's arguments: their kinds, what is computed of them, and themselves.
pub(crate) type CallArguments<'a, 'b> = (&'b [&'b CelType<'a>], &'b [CostEstimate<'a>], &'b [Expr]);

impl<'a> CostEstimator<'a, '_> {
    pub(crate) fn call(
        &self,
        expr: &Expr,
        name: &str,
        of: Option<(&CelType<'a>, CostEstimate<'a>)>,
        given: CallArguments<'a, '_>,
    ) -> CostEstimate<'a> {
        let (kinds, parts, _) = given;
        let before = sum(parts.iter().chain(of.as_ref().map(|(_, part)| part)).map(|part| part.cost));
        let own = match &of {
            Some((kind, part)) => self.method_cost(name, (kind, part), given),
            None => function_cost(name, kinds, parts),
        };
        let (cost, size) = own.unwrap_or((1, None));
        let size = size.or_else(|| self.declared_size(expr, ValueOrigin::Computed));
        let entries = parts.first().filter(|_| name == "dyn").and_then(|part| part.entries);
        CostEstimate { size, entries, ..CostEstimate::computed(cost.saturating_add(before)) }
    }

    /// The cost of a method, and the size of its result; `None`: the default.
    fn method_cost(
        &self,
        name: &str,
        (kind, of): (&CelType<'a>, &CostEstimate<'a>),
        (kinds, parts, given): CallArguments<'a, '_>,
    ) -> Option<(u64, Option<SizeRange>)> {
        let size = of.size_or_unknown();
        let text = by(size.max, TEXT);
        let first = parts.first().map(CostEstimate::size_or_unknown);
        Some(match name {
            "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" => match kind {
                CelType::List(item) => {
                    let item = if matches!(**item, CelType::String | CelType::Bytes) {
                        by(self.item_size(of).max, TEXT)
                    } else {
                        0
                    };
                    (size.max.saturating_mul(item.saturating_add(1)), None)
                }
                _ => (text, None),
            },
            "lowerAscii" | "upperAscii" | "substring" | "trim" => (text, Some(size)),
            "replace" => (by(size.max, 2.0 * TEXT), Some(replaced(size, first?, parts.get(1)?.size_or_unknown()))),
            "split" => {
                let limit = given.get(1).and_then(|limit| match &limit.kind {
                    ExprKind::Literal(CelValue::Int(number)) => Some(number.cast_unsigned()),
                    _ => None,
                });
                let most = limit.unwrap_or(size.max);
                (by(size.max, 2.0 * TEXT), Some(SizeRange { min: 0, max: most }))
            }
            "join" => {
                let mut found = SizeRange::of(0);
                if matches!(kind, CelType::List(_)) {
                    found = size.times(self.item_size(of));
                }
                if let Some(between) = first {
                    let gaps = SizeRange { min: size.min.saturating_sub(1), max: size.max.saturating_sub(1) };
                    found = found.plus(between.times(gaps));
                }
                (by(found.max, TEXT), Some(found))
            }
            "find" | "findAll" | "matches" => {
                let cost = by(size.max.saturating_add(1), TEXT).saturating_mul(by(first?.max, PATTERN));
                (cost, (name != "matches").then_some(SizeRange { min: 0, max: size.max }))
            }
            "containsIP" | "containsCIDR" => {
                let range = by(2 * ADDRESS_BYTES, TEXT);
                let masked = if name == "containsCIDR" { by(ADDRESS_BYTES, TEXT) + 1 } else { 0 };
                let read = kinds.first().is_some_and(|kind| matches!(kind, CelType::String | CelType::Dyn));
                let read = if read { by(first?.max, TEXT) } else { 0 };
                (sum([range, masked, read]), None)
            }
            "validate" => (by(by(first?.max, TEXT), FORMAT_PATTERN_BYTES * PATTERN), None),
            "format" => (text, None),
            "startsWith" | "endsWith" => (by(first?.max, TEXT), None),
            "contains" => (text.saturating_mul(by(first?.max, TEXT)), None),
            _ => return None,
        })
    }

    /// The element of a list or map.
    fn item_size(&self, of: &CostEstimate<'a>) -> SizeRange {
        let from = match of.origin {
            ValueOrigin::Computed => ValueOrigin::Unknown,
            from => self.step(from, SchemaStep::Item),
        };
        self.schema_size(from).unwrap_or(SizeRange::UNKNOWN)
    }
}

fn function_cost(name: &str, kinds: &[&CelType<'_>], parts: &[CostEstimate<'_>]) -> Option<(u64, Option<SizeRange>)> {
    let size = parts.first()?.size_or_unknown();
    let text = by(size.max, TEXT);
    let may_be = |wanted: &CelType<'_>| kinds.first().is_some_and(|kind| kind.is_assignable_to(wanted));
    Some(match name {
        "url" => (text, Some(size)),
        "cidr" | "isIP" | "isCIDR" | "ip" | "quantity" | "isQuantity" => (text, None),
        "bytes" if may_be(&CelType::String) => (text, Some(SizeRange { max: size.max.saturating_mul(4), ..size })),
        "string" if may_be(&CelType::Bytes) => (text, Some(SizeRange { min: size.min / 4, ..size })),
        "sets.contains" | "sets.intersects" | "sets.equivalent" => {
            let times = if name == "sets.equivalent" { 2.0 } else { 1.0 };
            (by(size.times(parts.get(1)?.size_or_unknown()).max, times).saturating_add(1), None)
        }
        "dyn" => (1, parts.first()?.size),
        _ => return None,
    })
}

/// The size of a text in which `old` is replaced by `new`.
fn replaced(size: SizeRange, old: SizeRange, new: SizeRange) -> SizeRange {
    let parts = |size: u64, old: u64| if old == 0 { size.saturating_add(1) } else { size.div_ceil(old) };
    // As many of the shortest as there can be, each by the longest; and the other way round.
    let (most, kept) = match old.min {
        0 => (parts(size.max, 0), size.max),
        least if new.max <= least => (0, size.max),
        least => (parts(size.max, least), 0),
    };
    let (least, least_kept) = match old.max {
        0 => (parts(size.min, 0), size.min),
        most if most <= new.min => (0, size.min),
        most => (parts(size.min, most), 0),
    };
    SizeRange { min: least, max: most }.times(new).plus(SizeRange { min: least_kept, max: kept })
}
