//! What a rule costs at most, told before there is an object: a definition whose rules could cost too much is refused.
//!
//! Costs are those of Kubernetes' estimate, with what is odd in it, so that a definition that is taken there is taken
//! here and the other way round. Only the most is reckoned; nothing asks for the least.

use std::cell::RefCell;
use std::collections::HashMap;

use super::check::Kind;
use super::parse::{Each, Expr, What};
use super::sizes::{Node, Sizes, Step};
use super::value::Val;

/// Costs of a new list, and of a new map.
const LIST: u64 = 10;
const MAP: u64 = 30;
/// What going through a text costs, by the byte.
pub(super) const TEXT: f64 = 0.1;
/// Bytes of a named format.
const FORMAT_BYTES: u64 = 64;

/// The kinds of a rule's parts, by where they stand in memory.
pub(super) type Kinds<'a> = RefCell<HashMap<*const Expr, Kind<'a>>>;

/// A number of bytes, items or entries.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub(super) least: u64,
    pub(super) most: u64,
}

/// Sizes of what is in a list or map.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entries {
    is_list: bool,
    key: Size,
    value: Size,
}

/// Where a value comes from.
#[derive(Debug, Clone, Copy)]
pub(super) enum Origin<'a> {
    /// It was made.
    Nowhere,
    There(Node<'a>),
    /// From where nothing is known of.
    Unknown,
}

/// What is reckoned of a part.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part<'a> {
    pub(super) cost: u64,
    pub(super) from: Origin<'a>,
    pub(super) size: Option<Size>,
    pub(super) entries: Option<Entries>,
}

/// A name, and what it stands for.
#[derive(Debug, Clone, Copy)]
struct Bound<'a, 'b> {
    name: &'b str,
    part: Part<'a>,
    outer: Option<&'b Bound<'a, 'b>>,
}

/// What the reckoning works with.
pub(super) struct Reckoner<'a, 'b> {
    root: Node<'a>,
    kinds: &'b HashMap<*const Expr, Kind<'a>>,
    sizes: &'b Sizes,
}

type Scope<'a, 'b> = Option<&'b Bound<'a, 'b>>;

/// What the rule costs at most, of whose parts the kinds are known.
pub(super) fn most<'a>(
    rule: &Expr,
    root: Node<'a>,
    kinds: &HashMap<*const Expr, Kind<'a>>,
    sizes: &Sizes,
) -> u64 {
    Reckoner { root, kinds, sizes }.part(rule, None).cost
}

impl Size {
    pub(super) const UNKNOWN: Self = Self { least: 0, most: u64::MAX };

    pub(super) const fn of(number: u64) -> Self {
        Self { least: number, most: number }
    }

    fn or(self, other: Self) -> Self {
        Self { least: self.least.min(other.least), most: self.most.max(other.most) }
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self { least: self.least.saturating_add(other.least), most: self.most.saturating_add(other.most) }
    }

    pub(super) fn times(self, other: Self) -> Self {
        Self { least: self.least.saturating_mul(other.least), most: self.most.saturating_mul(other.most) }
    }
}

impl Entries {
    fn or(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        let (one, other) = (one?, other?);
        Some(Self { is_list: one.is_list, key: one.key.or(other.key), value: one.value.or(other.value) })
    }
}

impl Part<'_> {
    pub(super) fn made(cost: u64) -> Self {
        Self { cost, from: Origin::Nowhere, size: None, entries: None }
    }

    pub(super) fn known_size(&self) -> Size {
        self.size.unwrap_or(Size::UNKNOWN)
    }

    fn most(&self) -> u64 {
        self.known_size().most
    }
}

/// Rounded up.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "as Kubernetes reckons; a cast of a float saturates"
)]
pub(super) fn by(size: u64, factor: f64) -> u64 {
    (size as f64 * factor).ceil() as u64
}

pub(super) fn sum(costs: impl IntoIterator<Item = u64>) -> u64 {
    costs.into_iter().fold(0, u64::saturating_add)
}

fn is_scalar(kind: &Kind<'_>) -> bool {
    match kind {
        Kind::Bool | Kind::Double | Kind::Duration | Kind::Int | Kind::Moment | Kind::Uint => true,
        Kind::Optional(inner) => is_scalar(inner),
        _ => false,
    }
}

/// What a comprehension is made of, apart from what the rule says.
struct Loop {
    /// Before it, for each look at whether it goes on, and for its result.
    begin: u64,
    look: u64,
    result: u64,
    is_list: bool,
}

impl Loop {
    fn of(how: Each) -> Self {
        match how {
            Each::All => Self { begin: 0, look: 2, result: 1, is_list: false },
            Each::Exists => Self { begin: 0, look: 3, result: 1, is_list: false },
            Each::ExistsOne => Self { begin: 0, look: 0, result: 2, is_list: false },
            _ => Self { begin: LIST, look: 0, result: 1, is_list: true },
        }
    }
}

impl<'a> Reckoner<'a, '_> {
    fn kind(&self, expr: &Expr) -> &Kind<'a> {
        self.kinds.get(&std::ptr::from_ref(expr)).unwrap_or(&Kind::Dyn)
    }

    /// One step on. What was made has a place as well, for whatever is asked of it: the root's. That is how
    /// Kubernetes reckons.
    pub(super) fn step(&self, from: Origin<'a>, step: Step<'_>) -> Origin<'a> {
        match from {
            Origin::Nowhere => Origin::There(self.root),
            Origin::There(node) => node.step(step).map_or(Origin::Unknown, Origin::There),
            Origin::Unknown => Origin::Unknown,
        }
    }

    pub(super) fn size_there(&self, from: Origin<'a>) -> Option<Size> {
        match from {
            Origin::There(node) => Some(Size { least: 0, most: self.sizes.most(node) }),
            _ => None,
        }
    }

    /// The size of a part that says nothing of it itself.
    pub(super) fn told_size(&self, expr: &Expr, from: Origin<'a>) -> Option<Size> {
        self.size_there(from).or_else(|| is_scalar(self.kind(expr)).then_some(Size::of(1)))
    }

    /// Recursion is bounded by the rule's depth, which reading it bounds.
    fn part(&self, expr: &Expr, scope: Scope<'a, '_>) -> Part<'a> {
        match &expr.what {
            // The name of a type is a name that is not bound, like `self`: to Kubernetes both stand for the root.
            What::Literal(Val::Type(_)) => self.name(expr, "", None),
            What::Literal(value) => literal(value),
            What::Name(name) => self.name(expr, name, scope),
            What::Field { of, field, optional: false } => {
                let inner = self.part(of, scope);
                let looks = matches!(self.kind(of), Kind::Map(..) | Kind::Object { .. } | Kind::Metadata);
                let from = self.step(inner.from, Step::Field(field));
                let cost = inner.cost.saturating_add(u64::from(looks));
                Part { from, size: self.told_size(expr, from), ..Part::made(cost) }
            }
            What::Field { of, .. } => self.call_of(expr, [self.part(of, scope)]),
            // Asking costs nothing.
            What::Has { of, .. } => Part { size: Some(Size::of(1)), ..Part::made(self.part(of, scope).cost) },
            What::Index { of, index, optional } => {
                let (inner, index) = (self.part(of, scope), self.part(index, scope));
                let mut found = self.call_of(expr, [inner, index]);
                if !optional {
                    found.from = self.step(inner.from, Step::Item);
                    found.size = inner.entries.map(|entries| entries.value);
                    found.size = found.size.or_else(|| self.told_size(expr, found.from));
                }
                found
            }
            // A number below nothing is one literal.
            What::Minus(inner) if matches!(inner.what, What::Literal(_)) => self.part(inner, scope),
            What::Not(inner) | What::Minus(inner) => self.call_of(expr, [self.part(inner, scope)]),
            What::And(all) | What::Or(all) => {
                let cost = sum(all.iter().map(|one| self.part(one, scope).cost));
                Part { size: Some(Size::of(1)), ..Part::made(cost) }
            }
            What::Choose(test, one, two) => {
                let test = self.part(test, scope);
                choose(&test, &self.part(one, scope), &self.part(two, scope))
            }
            What::Binary(operator, one, two) => self.binary(expr, operator, (one, two), scope),
            What::Call { name, of, given } => {
                let of = of.as_deref().map(|of| (self.kind(of), self.part(of, scope)));
                let kinds: Vec<&Kind<'a>> = given.iter().map(|one| self.kind(one)).collect();
                let parts: Vec<Part<'a>> = given.iter().map(|one| self.part(one, scope)).collect();
                self.call(expr, name, of, (&kinds, &parts, given))
            }
            What::List(items) => self.list(items, scope),
            What::Map(pairs) => self.map(pairs, scope),
            What::Each { how: how @ (Each::OptMap | Each::OptFlatMap), of, names, test, .. } => {
                self.of_optional(*how, of, (names, test), scope)
            }
            What::Each { how, of, names, test, then } => {
                self.each(*how, of, names, (test, then.as_deref()), scope)
            }
        }
    }

    fn name(&self, expr: &Expr, name: &str, scope: Scope<'a, '_>) -> Part<'a> {
        let bound = std::iter::successors(scope, |bound| bound.outer).find(|bound| bound.name == name);
        let from = bound.map_or(Origin::There(self.root), |bound| bound.part.from);
        let size = self.told_size(expr, from).or_else(|| bound.and_then(|bound| bound.part.size));
        Part { cost: 1, from, size, entries: bound.and_then(|bound| bound.part.entries) }
    }

    /// A call that costs nothing worth mentioning beside its arguments.
    fn call_of<const N: usize>(&self, expr: &Expr, given: [Part<'a>; N]) -> Part<'a> {
        let cost = 1_u64.saturating_add(sum(given.map(|one| one.cost)));
        Part { size: self.told_size(expr, Origin::Nowhere), ..Part::made(cost) }
    }

    fn list(&self, items: &[Expr], scope: Scope<'a, '_>) -> Part<'a> {
        let parts: Vec<Part<'a>> = items.iter().map(|item| self.part(item, scope)).collect();
        let value = parts.iter().map(Part::known_size).reduce(Size::or).unwrap_or(Size::of(0));
        let entries = Entries { is_list: true, key: Size::of(1), value };
        let cost = LIST.saturating_add(sum(parts.iter().map(|part| part.cost)));
        Part { size: Some(Size::of(items.len() as u64)), entries: Some(entries), ..Part::made(cost) }
    }

    fn map(&self, pairs: &[(Expr, Expr)], scope: Scope<'a, '_>) -> Part<'a> {
        let side = |parts: Vec<Part<'a>>| {
            let size = parts.iter().map(Part::known_size).reduce(Size::or).unwrap_or(Size::of(0));
            (size, sum(parts.iter().map(|part| part.cost)))
        };
        let (key, keys) = side(pairs.iter().map(|(key, _)| self.part(key, scope)).collect());
        let (value, values) = side(pairs.iter().map(|(_, value)| self.part(value, scope)).collect());
        let entries = Entries { is_list: false, key, value };
        let size = Some(Size::of(pairs.len() as u64));
        Part { size, entries: Some(entries), ..Part::made(sum([MAP, keys, values])) }
    }

    fn binary(
        &self,
        expr: &Expr,
        operator: &str,
        (one, two): (&Expr, &Expr),
        scope: Scope<'a, '_>,
    ) -> Part<'a> {
        let (kind, other) = (self.kind(one), self.kind(two));
        let (one, two) = (self.part(one, scope), self.part(two, scope));
        let texts = [kind, other].iter().any(|kind| matches!(kind, Kind::Text | Kind::Bytes | Kind::Dyn));
        let least = by(one.most().min(two.most()), TEXT);
        let mut size = self.told_size(expr, Origin::Nowhere);
        let mut entries = None;
        let cost = match (operator, kind) {
            ("==", Kind::Address | Kind::Range | Kind::Quantity | Kind::Url) => 1,
            ("==", Kind::Format) => by(FORMAT_BYTES, TEXT),
            ("==" | "!=", _) => least,
            ("<" | "<=" | ">" | ">=", _) if texts => least,
            ("in", _) if !matches!(other, Kind::Map(..)) => two.most(),
            ("+", _) if texts || matches!(kind, Kind::List(_)) => {
                let both = one.known_size().plus(two.known_size());
                size = Some(both);
                entries = Entries::or(one.entries, two.entries);
                if texts { by(both.most, TEXT) } else { 1 }
            }
            _ => 1,
        };
        Part { size, entries, ..Part::made(sum([cost, one.cost, two.cost])) }
    }

    fn each(
        &self,
        how: Each,
        of: &Expr,
        names: &[String],
        (test, then): (&Expr, Option<&Expr>),
        scope: Scope<'a, '_>,
    ) -> Part<'a> {
        let range = self.part(of, scope);
        let is_list = range.entries.map_or(matches!(self.kind(of), Kind::List(_)), |entries| entries.is_list);
        let size_of = |step: Step<'_>| {
            let entries = range.entries?;
            Some(if matches!(step, Step::Key) { entries.key } else { entries.value })
        };
        let bound = |step: Step<'_>| {
            // Of a list's places nothing is known.
            let from = match (self.step(range.from, step), step) {
                (Origin::There(_), Step::Key) if is_list && names.len() == 2 => Origin::Unknown,
                (from, _) => from,
            };
            Part { from, size: size_of(step), ..Part::made(1) }
        };
        let first = if is_list && names.len() == 1 { Step::Item } else { Step::Key };
        let name = names.first().map_or("", String::as_str);
        let outer = Bound { name, part: bound(first), outer: scope };
        let second = names.get(1).map(|name| Bound { name, part: bound(Step::Item), outer: Some(&outer) });
        let inner = Some(second.as_ref().unwrap_or(&outer));

        let test = self.part(test, inner);
        let then = then.map(|then| self.part(then, inner));
        // A list grows by a new list of one.
        let grown = |item: &Part<'a>| sum([LIST + 2, item.cost]);
        let (step, item) = match (how, then) {
            (Each::Map, Some(then)) => (test.cost.saturating_add(grown(&then)), Some(then)),
            (Each::Map, None) => (grown(&test), Some(test)),
            (Each::Filter, _) => (test.cost.saturating_add(LIST + 3), Some(outer.part)),
            (Each::ExistsOne, _) => (test.cost.saturating_add(2), None),
            _ => (test.cost.saturating_add(1), None),
        };
        let around = Loop::of(how);
        let turns = range.most().saturating_mul(step.saturating_add(around.look));
        let cost = sum([range.cost, around.begin, around.result, turns]);
        let size = if around.is_list { range.known_size() } else { Size::of(1) };
        let entries = item.map(|item| {
            let size = self.size_there(item.from).or(item.size).unwrap_or(Size::UNKNOWN);
            Entries { is_list: true, key: Size::of(1), value: Size { least: 0, ..size } }
        });
        Part { size: Some(size), entries, ..Part::made(cost) }
    }

    /// `optMap` asks whether there is something, and goes through a list of nothing to give it a name.
    fn of_optional(
        &self,
        how: Each,
        of: &Expr,
        (names, test): (&[String], &Expr),
        scope: Scope<'a, '_>,
    ) -> Part<'a> {
        let of = self.part(of, scope);
        let asked = of.cost.saturating_add(1);
        let name = names.first().map_or("", String::as_str);
        let found = self.part(test, Some(&Bound { name, part: Part::made(1), outer: scope }));
        let wrapped = u64::from(how == Each::OptMap);
        Part::made(sum([asked, LIST, asked, found.cost, wrapped]))
    }
}

fn literal<'a>(value: &Val) -> Part<'a> {
    let size = match value {
        Val::Text(text) => Size::of(text.chars().count() as u64),
        Val::Bytes(bytes) => Size::of(bytes.len() as u64),
        _ => Size::of(1),
    };
    Part { size: Some(size), ..Part::made(0) }
}

fn choose<'a>(test: &Part<'a>, one: &Part<'a>, two: &Part<'a>) -> Part<'a> {
    let cost = test.cost.saturating_add(one.cost.max(two.cost));
    let size = one.known_size().or(two.known_size());
    Part { size: Some(size), entries: Entries::or(one.entries, two.entries), ..Part::made(cost) }
}
