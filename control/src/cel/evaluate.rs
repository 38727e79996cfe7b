//! What a rule says of a value.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::parse::{Each, Expr, What};
use super::value::{Key, Val};
use super::{Failure, Steps, wrong};
use super::{call, collections};

/// What names stand for, innermost first.
#[derive(Debug)]
pub(crate) struct Scope<'a> {
    pub(crate) name: &'a str,
    pub(crate) value: Val,
    pub(crate) outer: Option<&'a Scope<'a>>,
}

impl Scope<'_> {
    fn find(&self, name: &str) -> Option<&Val> {
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
pub(super) fn evaluate(expr: &Expr, scope: &Scope<'_>, steps: &mut Steps) -> Result<Val, Failure> {
    steps.take(1)?;
    match &expr.what {
        What::Literal(value) => Ok(value.clone()),
        What::Name(name) => match scope.find(name) {
            Some(value) => Ok(value.clone()),
            None => wrong(format!("no such attribute: {name}")),
        },
        What::Field { of, field, optional } => {
            let of = evaluate(of, scope, steps)?;
            at(&of, &Val::text(field), *optional)
        }
        What::Has { of, field } => has(&evaluate(of, scope, steps)?, field),
        What::Index { of, index, optional } => {
            let of = evaluate(of, scope, steps)?;
            let index = evaluate(index, scope, steps)?;
            compared(&index, steps)?;
            at(&of, &index, *optional)
        }
        What::Not(inner) => Ok(Val::Bool(!truth(evaluate(inner, scope, steps)?)?)),
        What::Minus(inner) => match evaluate(inner, scope, steps)? {
            Val::Int(number) => number.checked_neg().map(Val::Int).ok_or_else(overflow),
            Val::Double(number) => Ok(Val::Double(-number)),
            other => wrong(format!("no such overload: -{}", other.kind())),
        },
        What::And(all) => decide(all, false, scope, steps),
        What::Or(all) => decide(all, true, scope, steps),
        What::Choose(test, one, two) => {
            let chosen = if truth(evaluate(test, scope, steps)?)? { one } else { two };
            evaluate(chosen, scope, steps)
        }
        What::Binary(operator, one, two) => {
            let (one, two) = (evaluate(one, scope, steps)?, evaluate(two, scope, steps)?);
            binary(operator, &one, &two, steps)
        }
        What::Call { name, of, given } => {
            let of = of.as_ref().map(|of| evaluate(of, scope, steps)).transpose()?;
            let given = given.iter().map(|one| evaluate(one, scope, steps)).collect::<Result<Vec<_>, _>>()?;
            match of {
                Some(of) => call::method(name, &of, &given, steps),
                None => call::function(name, &given, steps),
            }
        }
        What::List(items) => {
            let items = items.iter().map(|item| evaluate(item, scope, steps)).collect::<Result<_, _>>()?;
            Ok(Val::list(items))
        }
        What::Map(pairs) => {
            let mut found = BTreeMap::new();
            for (key, value) in pairs {
                let key = Key::of(&evaluate(key, scope, steps)?)?;
                found.insert(key, evaluate(value, scope, steps)?);
            }
            Ok(Val::Map(Arc::new(found)))
        }
        What::Each { how, of, names, test, then } => {
            let of = evaluate(of, scope, steps)?;
            match how {
                Each::OptMap | Each::OptFlatMap => of_optional(*how, &of, names, test, scope, steps),
                _ => each(*how, &of, names, (test, then.as_deref()), scope, steps),
            }
        }
    }
}

fn truth(value: Val) -> Result<bool, Failure> {
    match value {
        Val::Bool(truth) => Ok(truth),
        other => wrong(format!("no such overload: a {} is neither true nor false", other.kind())),
    }
}

pub(super) fn overflow() -> Failure {
    Failure::Wrong("integer overflow".into())
}

/// `&&` and `||`: one part that decides outweighs others that fail.
fn decide(parts: &[Expr], decisive: bool, scope: &Scope<'_>, steps: &mut Steps) -> Result<Val, Failure> {
    let mut failed = None;
    for part in parts {
        match evaluate(part, scope, steps).and_then(truth) {
            Ok(found) if found == decisive => return Ok(Val::Bool(decisive)),
            Ok(_) => {}
            Err(Failure::Over) => return Err(Failure::Over),
            Err(why) => failed = failed.or(Some(why)),
        }
    }
    failed.map_or(Ok(Val::Bool(!decisive)), Err)
}

/// A key that is looked for is compared with some of a map's.
fn compared(key: &Val, steps: &mut Steps) -> Result<(), Failure> {
    if let Val::Text(text) = key { steps.text(text.len()) } else { Ok(()) }
}

fn has(of: &Val, field: &str) -> Result<Val, Failure> {
    match of {
        Val::Map(fields) => Ok(Val::Bool(fields.contains_key(&Key::Text(field.into())))),
        Val::Optional(None) => Ok(Val::Bool(false)),
        Val::Optional(Some(inner)) => has(inner, field),
        other => wrong(format!("no such overload: a {} has no fields", other.kind())),
    }
}

/// A field, or a place in a list. What is in something optional is optional.
fn at(of: &Val, index: &Val, optional: bool) -> Result<Val, Failure> {
    if let Val::Optional(inner) = of {
        return match inner {
            None => Ok(Val::Optional(None)),
            Some(inner) => match at(inner, index, true)? {
                found @ Val::Optional(_) => Ok(found),
                found => Ok(Val::Optional(Some(Arc::new(found)))),
            },
        };
    }
    let found = match (of, index) {
        (Val::Map(fields), key) => fields.get(&Key::of(key)?).cloned(),
        (Val::List(items), Val::Int(place)) => {
            usize::try_from(*place).ok().and_then(|at| items.get(at).cloned())
        }
        (of, _) => return wrong(format!("no such overload: a {} has no fields", of.kind())),
    };
    match (found, optional) {
        (found, true) => Ok(Val::Optional(found.map(Arc::new))),
        (Some(found), false) => Ok(found),
        (None, false) => match index {
            Val::Text(name) => wrong(format!("no such key: {name}")),
            Val::Int(place) => wrong(format!("index out of bounds: {place}")),
            _ => wrong("no such key"),
        },
    }
}

fn binary(operator: &str, one: &Val, two: &Val, steps: &mut Steps) -> Result<Val, Failure> {
    let ordered =
        |steps: &mut Steps, good: fn(Ordering) -> bool| one.order(two, steps).map(|o| Val::Bool(good(o)));
    match operator {
        "==" => one.equals(two, steps).map(Val::Bool),
        "!=" => one.equals(two, steps).map(|same| Val::Bool(!same)),
        "<" => ordered(steps, Ordering::is_lt),
        "<=" => ordered(steps, Ordering::is_le),
        ">" => ordered(steps, Ordering::is_gt),
        ">=" => ordered(steps, Ordering::is_ge),
        "in" => contains(two, one, steps).map(Val::Bool),
        _ => arithmetic(operator, one, two, steps),
    }
}

fn contains(within: &Val, wanted: &Val, steps: &mut Steps) -> Result<bool, Failure> {
    match within {
        Val::List(items) => {
            for item in items.iter() {
                if item.equals(wanted, steps)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        Val::Map(fields) => {
            compared(wanted, steps)?;
            Ok(fields.contains_key(&Key::of(wanted)?))
        }
        other => wrong(format!("no such overload: nothing is in a {}", other.kind())),
    }
}

/// Arithmetic of whole numbers, with and without a sign.
macro_rules! whole {
    ($operator:expr, $one:expr, $two:expr, $val:expr) => {
        match $operator {
            "+" => $one.checked_add(*$two),
            "-" => $one.checked_sub(*$two),
            "*" => $one.checked_mul(*$two),
            "/" | "%" if *$two == 0 => return wrong("division by zero"),
            "/" => $one.checked_div(*$two),
            _ => $one.checked_rem(*$two),
        }
        .map($val)
    };
}

fn arithmetic(operator: &str, one: &Val, two: &Val, steps: &mut Steps) -> Result<Val, Failure> {
    let found = match (one, two) {
        (Val::Int(one), Val::Int(two)) => whole!(operator, one, two, Val::Int),
        (Val::Uint(one), Val::Uint(two)) => whole!(operator, one, two, Val::Uint),
        (Val::Double(one), Val::Double(two)) => match operator {
            "+" => Some(one + two),
            "-" => Some(one - two),
            "*" => Some(one * two),
            "/" => Some(one / two),
            _ => return unfit(operator, "double", "double"),
        }
        .map(Val::Double),
        (Val::Text(one), Val::Text(two)) if operator == "+" => {
            steps.text(one.len() + two.len())?;
            Some(Val::text(format!("{one}{two}")))
        }
        (Val::Bytes(one), Val::Bytes(two)) if operator == "+" => {
            steps.text(one.len() + two.len())?;
            Some(Val::Bytes([&**one, &**two].concat().into()))
        }
        (Val::List(one), Val::List(two)) if operator == "+" => {
            steps.take(one.len() + two.len())?;
            Some(Val::list(one.iter().chain(two.iter()).cloned().collect()))
        }
        _ => return in_time(operator, one, two),
    };
    found.ok_or_else(overflow)
}

fn in_time(operator: &str, one: &Val, two: &Val) -> Result<Val, Failure> {
    let found = match (operator, one, two) {
        ("+", Val::Duration(one), Val::Duration(two)) => one.checked_add(*two).map(Val::Duration),
        ("-", Val::Duration(one), Val::Duration(two)) => one.checked_sub(*two).map(Val::Duration),
        ("+", Val::Moment(moment), Val::Duration(span)) | ("+", Val::Duration(span), Val::Moment(moment)) => {
            moment.checked_add(*span).ok().map(Val::Moment)
        }
        ("-", Val::Moment(moment), Val::Duration(span)) => moment.checked_sub(*span).ok().map(Val::Moment),
        ("-", Val::Moment(one), Val::Moment(two)) => Some(Val::Duration(one.duration_since(*two))),
        _ => return unfit(operator, one.kind(), two.kind()),
    };
    found.ok_or_else(overflow)
}

fn unfit(operator: &str, one: &str, two: &str) -> Result<Val, Failure> {
    wrong(format!("no such overload: {one} {operator} {two}"))
}

/// `optMap` and `optFlatMap`.
fn of_optional(
    how: Each,
    of: &Val,
    names: &[String],
    test: &Expr,
    scope: &Scope<'_>,
    steps: &mut Steps,
) -> Result<Val, Failure> {
    let Val::Optional(inner) = of else {
        return wrong(format!("no such overload: a {} is not optional", of.kind()));
    };
    let (Some(inner), Some(name)) = (inner, names.first()) else { return Ok(Val::Optional(None)) };
    let scope = Scope { name, value: Val::clone(inner), outer: Some(scope) };
    match (how, evaluate(test, &scope, steps)?) {
        (Each::OptMap, found) => Ok(Val::Optional(Some(Arc::new(found)))),
        (_, found @ Val::Optional(_)) => Ok(found),
        (_, found) => wrong(format!("no such overload: a {} is not optional", found.kind())),
    }
}

/// `all`, `exists` and their like, over a list's items or a map's keys; with two names over places and items, or keys
/// and values.
fn each(
    how: Each,
    of: &Val,
    names: &[String],
    (test, then): (&Expr, Option<&Expr>),
    scope: &Scope<'_>,
    steps: &mut Steps,
) -> Result<Val, Failure> {
    let [first, rest @ ..] = names else { return wrong("a macro without a name") };
    let second = rest.first();
    let pairs: Vec<(Val, Val)> = match of {
        Val::List(items) => {
            items.iter().enumerate().map(|(at, item)| (collections::place(at), item.clone())).collect()
        }
        Val::Map(fields) => fields.iter().map(|(key, value)| (key.value(), value.clone())).collect(),
        other => {
            return wrong(format!("no such overload: there is nothing to go through in a {}", other.kind()));
        }
    };
    steps.take(pairs.len())?;
    let (mut count, mut failed, mut kept) = (0, None, Vec::new());
    for (key, value) in pairs {
        let (value, other) = match (second, of) {
            (Some(_), _) => (key, value),
            (None, Val::List(_)) => (value, Val::Null),
            (None, _) => (key, Val::Null),
        };
        let outer = Scope { name: first, value, outer: Some(scope) };
        let inner = Scope { name: second.unwrap_or(first), value: other, outer: Some(&outer) };
        let here = if second.is_some() { &inner } else { &outer };
        let found = evaluate(test, here, steps);
        match how {
            Each::All | Each::Exists => match found.and_then(truth) {
                Ok(found) if found == (how == Each::Exists) => return Ok(Val::Bool(found)),
                Ok(_) => {}
                Err(Failure::Over) => return Err(Failure::Over),
                Err(why) => failed = failed.or(Some(why)),
            },
            Each::ExistsOne => count += usize::from(truth(found?)?),
            Each::Filter => {
                if truth(found?)? {
                    kept.push(outer.value);
                }
            }
            Each::Map => match then {
                None => kept.push(found?),
                Some(then) => {
                    if truth(found?)? {
                        kept.push(evaluate(then, here, steps)?);
                    }
                }
            },
            Each::OptMap | Each::OptFlatMap => return wrong("a list is not optional"),
        }
    }
    match (how, failed) {
        (Each::All | Each::Exists, Some(why)) => Err(why),
        (Each::All | Each::Exists, None) => Ok(Val::Bool(how == Each::All)),
        (Each::ExistsOne, _) => Ok(Val::Bool(count == 1)),
        (Each::Filter | Each::Map | Each::OptMap | Each::OptFlatMap, _) => Ok(Val::list(kept)),
    }
}
