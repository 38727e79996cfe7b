//! Evaluates a rule for a value.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::overflow;
use crate::parse::{Comprehension, Expr, ExprKind};
use crate::value::{CelMapKey, CelValue};
use crate::{EvalBudget, EvalError, collections, functions, mismatch};

/// The values of variables, innermost first.
#[derive(Debug)]
pub struct EvalScope<'a> {
    pub name: &'a str,
    pub value: CelValue,
    pub outer: Option<&'a EvalScope<'a>>,
}

impl EvalScope<'_> {
    fn find(&self, name: &str) -> Option<&CelValue> {
        let mut scope = self;
        loop {
            if scope.name == name {
                return Some(&scope.value);
            }
            scope = scope.outer?;
        }
    }
}

/// Recursion is bounded by the rule's depth, which reading it bounds.
pub(crate) fn evaluate(expr: &Expr, scope: &EvalScope<'_>, steps: &mut EvalBudget) -> Result<CelValue, EvalError> {
    steps.spend(1)?;
    match &expr.kind {
        ExprKind::Literal(value) => Ok(value.clone()),
        ExprKind::Name(name) => match scope.find(name) {
            Some(value) => Ok(value.clone()),
            None => mismatch(format!("no such attribute: {name}")),
        },
        ExprKind::Field { of, field, optional } => {
            let of = evaluate(of, scope, steps)?;
            index_value(&of, &CelValue::text(field), *optional)
        }
        ExprKind::Has { of, field } => has(&evaluate(of, scope, steps)?, field),
        ExprKind::Index { of, index, optional } => {
            let of = evaluate(of, scope, steps)?;
            let index = evaluate(index, scope, steps)?;
            compared(&index, steps)?;
            index_value(&of, &index, *optional)
        }
        ExprKind::Not(inner) => Ok(CelValue::Bool(!expect_bool(evaluate(inner, scope, steps)?)?)),
        ExprKind::Negate(inner) => match evaluate(inner, scope, steps)? {
            CelValue::Int(number) => number.checked_neg().map(CelValue::Int).ok_or_else(overflow),
            CelValue::Double(number) => Ok(CelValue::Double(-number)),
            other => mismatch(format!("no such overload: -{}", other.type_name())),
        },
        ExprKind::And(all) => logical(all, false, scope, steps),
        ExprKind::Or(all) => logical(all, true, scope, steps),
        ExprKind::Conditional(test, one, two) => {
            let chosen = if expect_bool(evaluate(test, scope, steps)?)? { one } else { two };
            evaluate(chosen, scope, steps)
        }
        ExprKind::Binary(operator, one, two) => {
            let (one, two) = (evaluate(one, scope, steps)?, evaluate(two, scope, steps)?);
            binary(operator, &one, &two, steps)
        }
        ExprKind::Call { name, of, given } => {
            let of = of.as_ref().map(|of| evaluate(of, scope, steps)).transpose()?;
            let given = given.iter().map(|one| evaluate(one, scope, steps)).collect::<Result<Vec<_>, _>>()?;
            match of {
                Some(of) => functions::method(name, &of, &given, steps),
                None => functions::function(name, &given, steps),
            }
        }
        ExprKind::List(items) => {
            let items = items.iter().map(|item| evaluate(item, scope, steps)).collect::<Result<_, _>>()?;
            Ok(CelValue::list(items))
        }
        ExprKind::Map(pairs) => {
            let mut found = BTreeMap::new();
            for (key, value) in pairs {
                let key = CelMapKey::of(&evaluate(key, scope, steps)?)?;
                found.insert(key, evaluate(value, scope, steps)?);
            }
            Ok(CelValue::Map(Arc::new(found)))
        }
        ExprKind::Comprehension { how, of, names, test, then } => {
            let of = evaluate(of, scope, steps)?;
            match how {
                Comprehension::OptMap | Comprehension::OptFlatMap => of_optional(*how, &of, names, test, scope, steps),
                _ => comprehension(*how, &of, names, (test, then.as_deref()), scope, steps),
            }
        }
    }
}

fn expect_bool(value: CelValue) -> Result<bool, EvalError> {
    match value {
        CelValue::Bool(truth) => Ok(truth),
        other => mismatch(format!("no such overload: a {} is neither true nor false", other.type_name())),
    }
}

/// `&&` and `||`: one part that decides outweighs others that fail.
fn logical(
    parts: &[Expr],
    decisive: bool,
    scope: &EvalScope<'_>,
    steps: &mut EvalBudget,
) -> Result<CelValue, EvalError> {
    let mut failed = None;
    for part in parts {
        match evaluate(part, scope, steps).and_then(expect_bool) {
            Ok(found) if found == decisive => return Ok(CelValue::Bool(decisive)),
            Ok(_) => {}
            Err(EvalError::BudgetExceeded) => return Err(EvalError::BudgetExceeded),
            Err(why) => failed = failed.or(Some(why)),
        }
    }
    failed.map_or(Ok(CelValue::Bool(!decisive)), Err)
}

/// A key that is looked for is compared with some of a map's.
fn compared(key: &CelValue, steps: &mut EvalBudget) -> Result<(), EvalError> {
    if let CelValue::String(text) = key { steps.spend_text(text.len()) } else { Ok(()) }
}

fn has(of: &CelValue, field: &str) -> Result<CelValue, EvalError> {
    match of {
        CelValue::Map(fields) => Ok(CelValue::Bool(fields.contains_key(&CelMapKey::Text(field.into())))),
        CelValue::Optional(None) => Ok(CelValue::Bool(false)),
        CelValue::Optional(Some(inner)) => has(inner, field),
        other => mismatch(format!("no such overload: a {} has no fields", other.type_name())),
    }
}

/// A field, or a place in a list. What is in something optional is optional.
fn index_value(of: &CelValue, index: &CelValue, optional: bool) -> Result<CelValue, EvalError> {
    if let CelValue::Optional(inner) = of {
        return match inner {
            None => Ok(CelValue::Optional(None)),
            Some(inner) => match index_value(inner, index, true)? {
                found @ CelValue::Optional(_) => Ok(found),
                found => Ok(CelValue::Optional(Some(Arc::new(found)))),
            },
        };
    }
    let found = match (of, index) {
        (CelValue::Map(fields), key) => fields.get(&CelMapKey::of(key)?).cloned(),
        (CelValue::List(items), CelValue::Int(place)) => {
            usize::try_from(*place).ok().and_then(|at| items.get(at).cloned())
        }
        (of, _) => return mismatch(format!("no such overload: a {} has no fields", of.type_name())),
    };
    match (found, optional) {
        (found, true) => Ok(CelValue::Optional(found.map(Arc::new))),
        (Some(found), false) => Ok(found),
        (None, false) => match index {
            CelValue::String(name) => mismatch(format!("no such key: {name}")),
            CelValue::Int(place) => mismatch(format!("index out of bounds: {place}")),
            _ => mismatch("no such key"),
        },
    }
}

fn binary(operator: &str, one: &CelValue, two: &CelValue, steps: &mut EvalBudget) -> Result<CelValue, EvalError> {
    let ordered =
        |steps: &mut EvalBudget, good: fn(Ordering) -> bool| one.compare(two, steps).map(|o| CelValue::Bool(good(o)));
    match operator {
        "==" => one.equals(two, steps).map(CelValue::Bool),
        "!=" => one.equals(two, steps).map(|same| CelValue::Bool(!same)),
        "<" => ordered(steps, Ordering::is_lt),
        "<=" => ordered(steps, Ordering::is_le),
        ">" => ordered(steps, Ordering::is_gt),
        ">=" => ordered(steps, Ordering::is_ge),
        "in" => contains(two, one, steps).map(CelValue::Bool),
        _ => arithmetic(operator, one, two, steps),
    }
}

fn contains(within: &CelValue, wanted: &CelValue, steps: &mut EvalBudget) -> Result<bool, EvalError> {
    match within {
        CelValue::List(items) => {
            for item in items.iter() {
                if item.equals(wanted, steps)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        CelValue::Map(fields) => {
            compared(wanted, steps)?;
            Ok(fields.contains_key(&CelMapKey::of(wanted)?))
        }
        other => mismatch(format!("no such overload: nothing is in a {}", other.type_name())),
    }
}

/// Arithmetic of whole numbers, with and without a sign.
macro_rules! whole {
    ($operator:expr, $one:expr, $two:expr, $val:expr) => {
        match $operator {
            "+" => $one.checked_add(*$two),
            "-" => $one.checked_sub(*$two),
            "*" => $one.checked_mul(*$two),
            "/" | "%" if *$two == 0 => return mismatch("division by zero"),
            "/" => $one.checked_div(*$two),
            _ => $one.checked_rem(*$two),
        }
        .map($val)
    };
}

fn arithmetic(operator: &str, one: &CelValue, two: &CelValue, steps: &mut EvalBudget) -> Result<CelValue, EvalError> {
    let found = match (one, two) {
        (CelValue::Int(one), CelValue::Int(two)) => whole!(operator, one, two, CelValue::Int),
        (CelValue::Uint(one), CelValue::Uint(two)) => whole!(operator, one, two, CelValue::Uint),
        (CelValue::Double(one), CelValue::Double(two)) => match operator {
            "+" => Some(one + two),
            "-" => Some(one - two),
            "*" => Some(one * two),
            "/" => Some(one / two),
            _ => return no_matching_overload(operator, "double", "double"),
        }
        .map(CelValue::Double),
        (CelValue::String(one), CelValue::String(two)) if operator == "+" => {
            steps.spend_text(one.len() + two.len())?;
            Some(CelValue::text(format!("{one}{two}")))
        }
        (CelValue::Bytes(one), CelValue::Bytes(two)) if operator == "+" => {
            steps.spend_text(one.len() + two.len())?;
            Some(CelValue::Bytes([&**one, &**two].concat().into()))
        }
        (CelValue::List(one), CelValue::List(two)) if operator == "+" => {
            steps.spend(one.len() + two.len())?;
            Some(CelValue::list(one.iter().chain(two.iter()).cloned().collect()))
        }
        _ => return time_arithmetic(operator, one, two),
    };
    found.ok_or_else(overflow)
}

fn time_arithmetic(operator: &str, one: &CelValue, two: &CelValue) -> Result<CelValue, EvalError> {
    let found = match (operator, one, two) {
        ("+", CelValue::Duration(one), CelValue::Duration(two)) => one.checked_add(*two).map(CelValue::Duration),
        ("-", CelValue::Duration(one), CelValue::Duration(two)) => one.checked_sub(*two).map(CelValue::Duration),
        ("+", CelValue::Timestamp(moment), CelValue::Duration(span))
        | ("+", CelValue::Duration(span), CelValue::Timestamp(moment)) => {
            moment.checked_add(*span).ok().map(CelValue::Timestamp)
        }
        ("-", CelValue::Timestamp(moment), CelValue::Duration(span)) => {
            moment.checked_sub(*span).ok().map(CelValue::Timestamp)
        }
        ("-", CelValue::Timestamp(one), CelValue::Timestamp(two)) => Some(CelValue::Duration(one.duration_since(*two))),
        _ => return no_matching_overload(operator, one.type_name(), two.type_name()),
    };
    found.ok_or_else(overflow)
}

fn no_matching_overload(operator: &str, one: &str, two: &str) -> Result<CelValue, EvalError> {
    mismatch(format!("no such overload: {one} {operator} {two}"))
}

/// `optMap` and `optFlatMap`.
fn of_optional(
    how: Comprehension,
    of: &CelValue,
    names: &[String],
    test: &Expr,
    scope: &EvalScope<'_>,
    steps: &mut EvalBudget,
) -> Result<CelValue, EvalError> {
    let CelValue::Optional(inner) = of else {
        return mismatch(format!("no such overload: a {} is not optional", of.type_name()));
    };
    let (Some(inner), Some(name)) = (inner, names.first()) else { return Ok(CelValue::Optional(None)) };
    let scope = EvalScope { name, value: CelValue::clone(inner), outer: Some(scope) };
    match (how, evaluate(test, &scope, steps)?) {
        (Comprehension::OptMap, found) => Ok(CelValue::Optional(Some(Arc::new(found)))),
        (_, found @ CelValue::Optional(_)) => Ok(found),
        (_, found) => mismatch(format!("no such overload: a {} is not optional", found.type_name())),
    }
}

/// `all`, `exists` and their like, over a list's items or a map's keys; with two names over places and items, or keys
/// and values.
fn comprehension(
    how: Comprehension,
    of: &CelValue,
    names: &[String],
    (test, then): (&Expr, Option<&Expr>),
    scope: &EvalScope<'_>,
    steps: &mut EvalBudget,
) -> Result<CelValue, EvalError> {
    let [first, rest @ ..] = names else { return mismatch("a macro without a name") };
    let second = rest.first();
    let pairs: Vec<(CelValue, CelValue)> = match of {
        CelValue::List(items) => {
            items.iter().enumerate().map(|(at, item)| (collections::index_value(at), item.clone())).collect()
        }
        CelValue::Map(fields) => fields.iter().map(|(key, value)| (key.value(), value.clone())).collect(),
        other => {
            return mismatch(format!("no such overload: there is nothing to go through in a {}", other.type_name()));
        }
    };
    steps.spend(pairs.len())?;
    let (mut count, mut failed, mut kept) = (0, None, Vec::new());
    for (key, value) in pairs {
        let (value, other) = match (second, of) {
            (Some(_), _) => (key, value),
            (None, CelValue::List(_)) => (value, CelValue::Null),
            (None, _) => (key, CelValue::Null),
        };
        let outer = EvalScope { name: first, value, outer: Some(scope) };
        let inner = EvalScope { name: second.unwrap_or(first), value: other, outer: Some(&outer) };
        let here = if second.is_some() { &inner } else { &outer };
        let found = evaluate(test, here, steps);
        match how {
            Comprehension::All | Comprehension::Exists => match found.and_then(expect_bool) {
                Ok(found) if found == (how == Comprehension::Exists) => return Ok(CelValue::Bool(found)),
                Ok(_) => {}
                Err(EvalError::BudgetExceeded) => return Err(EvalError::BudgetExceeded),
                Err(why) => failed = failed.or(Some(why)),
            },
            Comprehension::ExistsOne => count += usize::from(expect_bool(found?)?),
            Comprehension::Filter => {
                if expect_bool(found?)? {
                    kept.push(outer.value);
                }
            }
            Comprehension::Map => match then {
                None => kept.push(found?),
                Some(then) => {
                    if expect_bool(found?)? {
                        kept.push(evaluate(then, here, steps)?);
                    }
                }
            },
            Comprehension::OptMap | Comprehension::OptFlatMap => return mismatch("a list is not optional"),
        }
    }
    match (how, failed) {
        (Comprehension::All | Comprehension::Exists, Some(why)) => Err(why),
        (Comprehension::All | Comprehension::Exists, None) => Ok(CelValue::Bool(how == Comprehension::All)),
        (Comprehension::ExistsOne, _) => Ok(CelValue::Bool(count == 1)),
        (Comprehension::Filter | Comprehension::Map | Comprehension::OptMap | Comprehension::OptFlatMap, _) => {
            Ok(CelValue::list(kept))
        }
    }
}
