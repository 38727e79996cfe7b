//! Estimates the maximum cost of a rule from its schema: a definition whose rules could cost too much is rejected.
//!
//! Costs are those of Kubernetes' estimator, including its peculiarities, so that a definition that is accepted there is accepted
//! here and vice versa. Only the maximum is computed; nothing needs the minimum.

mod calls;
mod estimate;

use std::collections::HashMap;

use estimate::{CostEstimate, EntrySizes, SizeRange, ValueOrigin, by, sum};

use crate::CelType;
use crate::parse::{Comprehension, Expr, ExprKind};
use crate::sizes::{SchemaNode, SchemaStep, SizeEstimator};
use crate::value::CelValue;

/// Costs of a new list, and of a new map.
const LIST: u64 = 10;
const MAP: u64 = 30;
/// The cost of traversing a text, per byte.
pub(crate) const TEXT: f64 = 0.1;
/// Bytes of a named format.
const FORMAT_BYTES: u64 = 64;

/// A name, and what it stands for.
#[derive(Debug, Clone, Copy)]
struct CostScope<'a, 'b> {
    name: &'b str,
    part: CostEstimate<'a>,
    outer: Option<&'b CostScope<'a, 'b>>,
}

/// The context of the estimate.
pub(crate) struct CostEstimator<'a, 'b> {
    root: SchemaNode<'a>,
    kinds: &'b HashMap<*const Expr, CelType<'a>>,
    sizes: &'b SizeEstimator,
}

type CostScopeRef<'a, 'b> = Option<&'b CostScope<'a, 'b>>;

/// The maximum cost of the rule, with the types of its parts.
pub(crate) fn max_cost<'a>(
    rule: &Expr,
    root: SchemaNode<'a>,
    kinds: &HashMap<*const Expr, CelType<'a>>,
    sizes: &SizeEstimator,
) -> u64 {
    CostEstimator { root, kinds, sizes }.estimate(rule, None).cost
}

fn is_scalar(kind: &CelType<'_>) -> bool {
    match kind {
        CelType::Bool | CelType::Double | CelType::Duration | CelType::Int | CelType::Timestamp | CelType::Uint => true,
        CelType::Optional(inner) => is_scalar(inner),
        _ => false,
    }
}

/// The parts of a comprehension that the parser adds.
struct ComprehensionCost {
    /// Before it, for each look at whether it continues, and for its result.
    init: u64,
    step: u64,
    result: u64,
    is_list: bool,
}

impl ComprehensionCost {
    fn of(how: Comprehension) -> Self {
        match how {
            Comprehension::All => Self { init: 0, step: 2, result: 1, is_list: false },
            Comprehension::Exists => Self { init: 0, step: 3, result: 1, is_list: false },
            Comprehension::ExistsOne => Self { init: 0, step: 0, result: 2, is_list: false },
            _ => Self { init: LIST, step: 0, result: 1, is_list: true },
        }
    }
}

impl<'a> CostEstimator<'a, '_> {
    fn kind(&self, expr: &Expr) -> &CelType<'a> {
        self.kinds.get(&std::ptr::from_ref(expr)).unwrap_or(&CelType::Dyn)
    }

    /// One step on. What was made has a place as well, for whatever is asked of it: the root's. That is how
    /// Kubernetes reckons.
    pub(crate) fn step(&self, from: ValueOrigin<'a>, step: SchemaStep<'_>) -> ValueOrigin<'a> {
        match from {
            ValueOrigin::Computed => ValueOrigin::Schema(self.root),
            ValueOrigin::Schema(node) => node.step(step).map_or(ValueOrigin::Unknown, ValueOrigin::Schema),
            ValueOrigin::Unknown => ValueOrigin::Unknown,
        }
    }

    pub(crate) fn schema_size(&self, from: ValueOrigin<'a>) -> Option<SizeRange> {
        match from {
            ValueOrigin::Schema(node) => Some(SizeRange { min: 0, max: self.sizes.max_size(node) }),
            _ => None,
        }
    }

    /// The size of a part that does not specify it itself.
    pub(crate) fn declared_size(&self, expr: &Expr, from: ValueOrigin<'a>) -> Option<SizeRange> {
        self.schema_size(from).or_else(|| is_scalar(self.kind(expr)).then_some(SizeRange::of(1)))
    }

    /// Recursion is bounded by the rule's depth, which reading it bounds.
    fn estimate(&self, expr: &Expr, scope: CostScopeRef<'a, '_>) -> CostEstimate<'a> {
        match &expr.kind {
            // The name of a type is a name that is not bound, like `self`: to Kubernetes both stand for the root.
            ExprKind::Literal(CelValue::Type(_)) => self.name(expr, "", None),
            ExprKind::Literal(value) => literal(value),
            ExprKind::Name(name) => self.name(expr, name, scope),
            ExprKind::Field { of, field, optional: false } => {
                let inner = self.estimate(of, scope);
                let looks = matches!(self.kind(of), CelType::Map(..) | CelType::Object { .. } | CelType::Metadata);
                let from = self.step(inner.origin, SchemaStep::Field(field));
                let cost = inner.cost.saturating_add(u64::from(looks));
                CostEstimate { origin: from, size: self.declared_size(expr, from), ..CostEstimate::computed(cost) }
            }
            ExprKind::Field { of, .. } => self.call_of(expr, [self.estimate(of, scope)]),
            // Asking costs nothing.
            ExprKind::Has { of, .. } => {
                CostEstimate { size: Some(SizeRange::of(1)), ..CostEstimate::computed(self.estimate(of, scope).cost) }
            }
            ExprKind::Index { of, index, optional } => {
                let (inner, index) = (self.estimate(of, scope), self.estimate(index, scope));
                let mut found = self.call_of(expr, [inner, index]);
                if !optional {
                    found.origin = self.step(inner.origin, SchemaStep::Item);
                    found.size = inner.entries.map(|entries| entries.value);
                    found.size = found.size.or_else(|| self.declared_size(expr, found.origin));
                }
                found
            }
            // A number below nothing is one literal.
            ExprKind::Negate(inner) if matches!(inner.kind, ExprKind::Literal(_)) => self.estimate(inner, scope),
            ExprKind::Not(inner) | ExprKind::Negate(inner) => self.call_of(expr, [self.estimate(inner, scope)]),
            ExprKind::And(all) | ExprKind::Or(all) => {
                let cost = sum(all.iter().map(|one| self.estimate(one, scope).cost));
                CostEstimate { size: Some(SizeRange::of(1)), ..CostEstimate::computed(cost) }
            }
            ExprKind::Conditional(test, one, two) => {
                let test = self.estimate(test, scope);
                choose(&test, &self.estimate(one, scope), &self.estimate(two, scope))
            }
            ExprKind::Binary(operator, one, two) => self.binary(expr, operator, (one, two), scope),
            ExprKind::Call { name, of, given } => {
                let of = of.as_deref().map(|of| (self.kind(of), self.estimate(of, scope)));
                let kinds: Vec<&CelType<'a>> = given.iter().map(|one| self.kind(one)).collect();
                let parts: Vec<CostEstimate<'a>> = given.iter().map(|one| self.estimate(one, scope)).collect();
                self.call(expr, name, of, (&kinds, &parts, given))
            }
            ExprKind::List(items) => self.list(items, scope),
            ExprKind::Map(pairs) => self.map(pairs, scope),
            ExprKind::Comprehension {
                how: how @ (Comprehension::OptMap | Comprehension::OptFlatMap),
                of,
                names,
                test,
                ..
            } => self.of_optional(*how, of, (names, test), scope),
            ExprKind::Comprehension { how, of, names, test, then } => {
                self.comprehension(*how, of, names, (test, then.as_deref()), scope)
            }
        }
    }

    fn name(&self, expr: &Expr, name: &str, scope: CostScopeRef<'a, '_>) -> CostEstimate<'a> {
        let bound = std::iter::successors(scope, |bound| bound.outer).find(|bound| bound.name == name);
        let from = bound.map_or(ValueOrigin::Schema(self.root), |bound| bound.part.origin);
        let size = self.declared_size(expr, from).or_else(|| bound.and_then(|bound| bound.part.size));
        CostEstimate { cost: 1, origin: from, size, entries: bound.and_then(|bound| bound.part.entries) }
    }

    /// A call whose cost is negligible compared with its arguments.
    fn call_of<const N: usize>(&self, expr: &Expr, given: [CostEstimate<'a>; N]) -> CostEstimate<'a> {
        let cost = 1_u64.saturating_add(sum(given.map(|one| one.cost)));
        CostEstimate { size: self.declared_size(expr, ValueOrigin::Computed), ..CostEstimate::computed(cost) }
    }

    fn list(&self, items: &[Expr], scope: CostScopeRef<'a, '_>) -> CostEstimate<'a> {
        let parts: Vec<CostEstimate<'a>> = items.iter().map(|item| self.estimate(item, scope)).collect();
        let value = parts.iter().map(CostEstimate::size_or_unknown).reduce(SizeRange::or).unwrap_or(SizeRange::of(0));
        let entries = EntrySizes { is_list: true, key: SizeRange::of(1), value };
        let cost = LIST.saturating_add(sum(parts.iter().map(|part| part.cost)));
        CostEstimate {
            size: Some(SizeRange::of(items.len() as u64)),
            entries: Some(entries),
            ..CostEstimate::computed(cost)
        }
    }

    fn map(&self, pairs: &[(Expr, Expr)], scope: CostScopeRef<'a, '_>) -> CostEstimate<'a> {
        let side = |parts: Vec<CostEstimate<'a>>| {
            let size =
                parts.iter().map(CostEstimate::size_or_unknown).reduce(SizeRange::or).unwrap_or(SizeRange::of(0));
            (size, sum(parts.iter().map(|part| part.cost)))
        };
        let (key, keys) = side(pairs.iter().map(|(key, _)| self.estimate(key, scope)).collect());
        let (value, values) = side(pairs.iter().map(|(_, value)| self.estimate(value, scope)).collect());
        let entries = EntrySizes { is_list: false, key, value };
        let size = Some(SizeRange::of(pairs.len() as u64));
        CostEstimate { size, entries: Some(entries), ..CostEstimate::computed(sum([MAP, keys, values])) }
    }

    fn binary(
        &self,
        expr: &Expr,
        operator: &str,
        (one, two): (&Expr, &Expr),
        scope: CostScopeRef<'a, '_>,
    ) -> CostEstimate<'a> {
        let (kind, other) = (self.kind(one), self.kind(two));
        let (one, two) = (self.estimate(one, scope), self.estimate(two, scope));
        let texts = [kind, other].iter().any(|kind| matches!(kind, CelType::String | CelType::Bytes | CelType::Dyn));
        let least = by(one.most().min(two.most()), TEXT);
        let mut size = self.declared_size(expr, ValueOrigin::Computed);
        let mut entries = None;
        let cost = match (operator, kind) {
            ("==", CelType::Ip | CelType::Cidr | CelType::Quantity | CelType::Url) => 1,
            ("==", CelType::Format) => by(FORMAT_BYTES, TEXT),
            ("==" | "!=", _) => least,
            ("<" | "<=" | ">" | ">=", _) if texts => least,
            ("in", _) if !matches!(other, CelType::Map(..)) => two.most(),
            ("+", _) if texts || matches!(kind, CelType::List(_)) => {
                let both = one.size_or_unknown().plus(two.size_or_unknown());
                size = Some(both);
                entries = EntrySizes::or(one.entries, two.entries);
                if texts { by(both.max, TEXT) } else { 1 }
            }
            _ => 1,
        };
        CostEstimate { size, entries, ..CostEstimate::computed(sum([cost, one.cost, two.cost])) }
    }

    fn comprehension(
        &self,
        how: Comprehension,
        of: &Expr,
        names: &[String],
        (test, then): (&Expr, Option<&Expr>),
        scope: CostScopeRef<'a, '_>,
    ) -> CostEstimate<'a> {
        let range = self.estimate(of, scope);
        let is_list = range.entries.map_or(matches!(self.kind(of), CelType::List(_)), |entries| entries.is_list);
        let size_of = |step: SchemaStep<'_>| {
            let entries = range.entries?;
            Some(if matches!(step, SchemaStep::Key) { entries.key } else { entries.value })
        };
        let bound = |step: SchemaStep<'_>| {
            // Of a list's places nothing is known.
            let from = match (self.step(range.origin, step), step) {
                (ValueOrigin::Schema(_), SchemaStep::Key) if is_list && names.len() == 2 => ValueOrigin::Unknown,
                (from, _) => from,
            };
            CostEstimate { origin: from, size: size_of(step), ..CostEstimate::computed(1) }
        };
        let first = if is_list && names.len() == 1 { SchemaStep::Item } else { SchemaStep::Key };
        let name = names.first().map_or("", String::as_str);
        let outer = CostScope { name, part: bound(first), outer: scope };
        let second = names.get(1).map(|name| CostScope { name, part: bound(SchemaStep::Item), outer: Some(&outer) });
        let inner = Some(second.as_ref().unwrap_or(&outer));

        let test = self.estimate(test, inner);
        let then = then.map(|then| self.estimate(then, inner));
        // A list grows by a new list of one.
        let grown = |item: &CostEstimate<'a>| sum([LIST + 2, item.cost]);
        let (step, item) = match (how, then) {
            (Comprehension::Map, Some(then)) => (test.cost.saturating_add(grown(&then)), Some(then)),
            (Comprehension::Map, None) => (grown(&test), Some(test)),
            (Comprehension::Filter, _) => (test.cost.saturating_add(LIST + 3), Some(outer.part)),
            (Comprehension::ExistsOne, _) => (test.cost.saturating_add(2), None),
            _ => (test.cost.saturating_add(1), None),
        };
        let around = ComprehensionCost::of(how);
        let turns = range.most().saturating_mul(step.saturating_add(around.step));
        let cost = sum([range.cost, around.init, around.result, turns]);
        let size = if around.is_list { range.size_or_unknown() } else { SizeRange::of(1) };
        let entries = item.map(|item| {
            let size = self.schema_size(item.origin).or(item.size).unwrap_or(SizeRange::UNKNOWN);
            EntrySizes { is_list: true, key: SizeRange::of(1), value: SizeRange { min: 0, ..size } }
        });
        CostEstimate { size: Some(size), entries, ..CostEstimate::computed(cost) }
    }

    /// `optMap` asks whether there is something, and goes through a list of nothing to give it a name.
    fn of_optional(
        &self,
        how: Comprehension,
        of: &Expr,
        (names, test): (&[String], &Expr),
        scope: CostScopeRef<'a, '_>,
    ) -> CostEstimate<'a> {
        let of = self.estimate(of, scope);
        let asked = of.cost.saturating_add(1);
        let name = names.first().map_or("", String::as_str);
        let found = self.estimate(test, Some(&CostScope { name, part: CostEstimate::computed(1), outer: scope }));
        let wrapped = u64::from(how == Comprehension::OptMap);
        CostEstimate::computed(sum([asked, LIST, asked, found.cost, wrapped]))
    }
}

fn literal<'a>(value: &CelValue) -> CostEstimate<'a> {
    let size = match value {
        CelValue::String(text) => SizeRange::of(text.chars().count() as u64),
        CelValue::Bytes(bytes) => SizeRange::of(bytes.len() as u64),
        _ => SizeRange::of(1),
    };
    CostEstimate { size: Some(size), ..CostEstimate::computed(0) }
}

fn choose<'a>(test: &CostEstimate<'a>, one: &CostEstimate<'a>, two: &CostEstimate<'a>) -> CostEstimate<'a> {
    let cost = test.cost.saturating_add(one.cost.max(two.cost));
    let size = one.size_or_unknown().or(two.size_or_unknown());
    CostEstimate { size: Some(size), entries: EntrySizes::or(one.entries, two.entries), ..CostEstimate::computed(cost) }
}
