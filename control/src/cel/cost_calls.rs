//! What calls of functions and methods cost at most, and how large what they give is.

use super::check::Kind;
use super::cost::{Origin, Part, Reckoner, Size, TEXT, by, sum};
use super::parse::{Expr, What};
use super::sizes::Step;
use super::value::Val;

/// What a pattern costs for each step through a text, by the byte of the pattern.
const PATTERN: f64 = 0.25;
/// Bytes of the pattern that a named format is reckoned to have.
const FORMAT_PATTERN_BYTES: f64 = 128.0;
/// Bytes of an address.
const ADDRESS_BYTES: u64 = 16;

/// A call's arguments: their kinds, what is reckoned of them, and themselves.
pub(super) type Given<'a, 'b> = (&'b [&'b Kind<'a>], &'b [Part<'a>], &'b [Expr]);

impl<'a> Reckoner<'a, '_> {
    pub(super) fn call(
        &self,
        expr: &Expr,
        name: &str,
        of: Option<(&Kind<'a>, Part<'a>)>,
        given: Given<'a, '_>,
    ) -> Part<'a> {
        let (kinds, parts, _) = given;
        let before = sum(parts.iter().chain(of.as_ref().map(|(_, part)| part)).map(|part| part.cost));
        let own = match &of {
            Some((kind, part)) => self.of_value(name, (kind, part), given),
            None => of_function(name, kinds, parts),
        };
        let (cost, size) = own.unwrap_or((1, None));
        let size = size.or_else(|| self.told_size(expr, Origin::Nowhere));
        let entries = parts.first().filter(|_| name == "dyn").and_then(|part| part.entries);
        Part { size, entries, ..Part::made(cost.saturating_add(before)) }
    }

    /// What a method costs, and how large its result is; `None`: what most cost.
    fn of_value(
        &self,
        name: &str,
        (kind, of): (&Kind<'a>, &Part<'a>),
        (kinds, parts, given): Given<'a, '_>,
    ) -> Option<(u64, Option<Size>)> {
        let size = of.known_size();
        let text = by(size.most, TEXT);
        let first = parts.first().map(Part::known_size);
        Some(match name {
            "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" => match kind {
                Kind::List(item) => {
                    let item = if matches!(**item, Kind::Text | Kind::Bytes) {
                        by(self.item_size(of).most, TEXT)
                    } else {
                        0
                    };
                    (size.most.saturating_mul(item.saturating_add(1)), None)
                }
                _ => (text, None),
            },
            "lowerAscii" | "upperAscii" | "substring" | "trim" => (text, Some(size)),
            "replace" => {
                (by(size.most, 2.0 * TEXT), Some(replaced(size, first?, parts.get(1)?.known_size())))
            }
            "split" => {
                let limit = given.get(1).and_then(|limit| match &limit.what {
                    What::Literal(Val::Int(number)) => Some(number.cast_unsigned()),
                    _ => None,
                });
                let most = limit.unwrap_or(size.most);
                (by(size.most, 2.0 * TEXT), Some(Size { least: 0, most }))
            }
            "join" => {
                let mut found = Size::of(0);
                if matches!(kind, Kind::List(_)) {
                    found = size.times(self.item_size(of));
                }
                if let Some(between) = first {
                    let gaps =
                        Size { least: size.least.saturating_sub(1), most: size.most.saturating_sub(1) };
                    found = found.plus(between.times(gaps));
                }
                (by(found.most, TEXT), Some(found))
            }
            "find" | "findAll" | "matches" => {
                let cost = by(size.most.saturating_add(1), TEXT).saturating_mul(by(first?.most, PATTERN));
                (cost, (name != "matches").then_some(Size { least: 0, most: size.most }))
            }
            "containsIP" | "containsCIDR" => {
                let range = by(2 * ADDRESS_BYTES, TEXT);
                let masked = if name == "containsCIDR" { by(ADDRESS_BYTES, TEXT) + 1 } else { 0 };
                let read = kinds.first().is_some_and(|kind| matches!(kind, Kind::Text | Kind::Dyn));
                let read = if read { by(first?.most, TEXT) } else { 0 };
                (sum([range, masked, read]), None)
            }
            "validate" => (by(by(first?.most, TEXT), FORMAT_PATTERN_BYTES * PATTERN), None),
            "format" => (text, None),
            "startsWith" | "endsWith" => (by(first?.most, TEXT), None),
            "contains" => (text.saturating_mul(by(first?.most, TEXT)), None),
            _ => return None,
        })
    }

    /// Of what is in a list or map.
    fn item_size(&self, of: &Part<'a>) -> Size {
        let from = match of.from {
            Origin::Nowhere => Origin::Unknown,
            from => self.step(from, Step::Item),
        };
        self.size_there(from).unwrap_or(Size::UNKNOWN)
    }
}

fn of_function(name: &str, kinds: &[&Kind<'_>], parts: &[Part<'_>]) -> Option<(u64, Option<Size>)> {
    let size = parts.first()?.known_size();
    let text = by(size.most, TEXT);
    let may_be = |wanted: &Kind<'_>| kinds.first().is_some_and(|kind| kind.fits(wanted));
    Some(match name {
        "url" => (text, Some(size)),
        "cidr" | "isIP" | "isCIDR" | "ip" | "quantity" | "isQuantity" => (text, None),
        "bytes" if may_be(&Kind::Text) => (text, Some(Size { most: size.most.saturating_mul(4), ..size })),
        "string" if may_be(&Kind::Bytes) => (text, Some(Size { least: size.least / 4, ..size })),
        "sets.contains" | "sets.intersects" | "sets.equivalent" => {
            let times = if name == "sets.equivalent" { 2.0 } else { 1.0 };
            (by(size.times(parts.get(1)?.known_size()).most, times).saturating_add(1), None)
        }
        "dyn" => (1, parts.first()?.size),
        _ => return None,
    })
}

/// The size of a text in which `old` is replaced by `new`.
fn replaced(size: Size, old: Size, new: Size) -> Size {
    let parts = |size: u64, old: u64| if old == 0 { size.saturating_add(1) } else { size.div_ceil(old) };
    // As many of the shortest as there can be, each by the longest; and the other way round.
    let (most, kept) = match old.least {
        0 => (parts(size.most, 0), size.most),
        least if new.most <= least => (0, size.most),
        least => (parts(size.most, least), 0),
    };
    let (least, least_kept) = match old.most {
        0 => (parts(size.least, 0), size.least),
        most if most <= new.least => (0, size.least),
        most => (parts(size.least, most), 0),
    };
    Size { least, most }.times(new).plus(Size { least: least_kept, most: kept })
}
