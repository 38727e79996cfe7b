//! What can be asked of a list.

use std::cmp::Ordering;

use jiff::SignedDuration;

use super::call::unfit;
use super::evaluate::overflow;
use super::value::Val;
use super::{Failure, Steps, wrong};

pub(super) fn method(name: &str, items: &[Val], given: &[Val], steps: &mut Steps) -> Result<Val, Failure> {
    steps.take(items.len())?;
    match (name, given) {
        ("size", []) => Ok(place(items.len())),
        ("isSorted", []) => {
            for pair in items.windows(2) {
                if pair[0].order(&pair[1], steps)? == Ordering::Greater {
                    return Ok(Val::Bool(false));
                }
            }
            Ok(Val::Bool(true))
        }
        ("min", []) => extreme(items, Ordering::Less, steps),
        ("max", []) => extreme(items, Ordering::Greater, steps),
        ("sum", []) => sum(items),
        ("indexOf", [wanted]) => {
            for (at, item) in items.iter().enumerate() {
                if item.equals(wanted, steps)? {
                    return Ok(place(at));
                }
            }
            Ok(Val::Int(-1))
        }
        ("lastIndexOf", [wanted]) => {
            for (at, item) in items.iter().enumerate().rev() {
                if item.equals(wanted, steps)? {
                    return Ok(place(at));
                }
            }
            Ok(Val::Int(-1))
        }
        ("join", _) => {
            let between = match given {
                [Val::Text(text)] => &**text,
                _ => "",
            };
            let mut texts = Vec::new();
            for item in items {
                let Val::Text(text) = item else { return unfit(name, item) };
                steps.text(text.len() + between.len())?;
                texts.push(&**text);
            }
            Ok(Val::text(texts.join(between)))
        }
        ("reverse", []) => Ok(Val::list(items.iter().rev().cloned().collect())),
        _ => unfit(name, &Val::list(Vec::new())),
    }
}

/// `sets.contains(all, some)` and its like.
pub(super) fn sets(name: &str, given: &[Val], steps: &mut Steps) -> Result<Val, Failure> {
    let [Val::List(one), Val::List(two)] = given else { return wrong(format!("no such overload: {name}")) };
    let has = |all: &[Val], wanted: &Val, steps: &mut Steps| -> Result<bool, Failure> {
        for item in all {
            if item.equals(wanted, steps)? {
                return Ok(true);
            }
        }
        Ok(false)
    };
    let mut found = 0;
    for wanted in two.iter() {
        found += usize::from(has(one, wanted, steps)?);
    }
    let mut truth = if name == "sets.intersects" { found > 0 } else { found == two.len() };
    if name == "sets.equivalent" && truth {
        for wanted in one.iter() {
            truth &= has(two, wanted, steps)?;
        }
    }
    Ok(Val::Bool(truth))
}

pub(super) fn place(at: usize) -> Val {
    Val::Int(i64::try_from(at).unwrap_or(i64::MAX))
}

fn extreme(items: &[Val], wanted: Ordering, steps: &mut Steps) -> Result<Val, Failure> {
    let Some((first, rest)) = items.split_first() else {
        return wrong("an empty list has neither min nor max");
    };
    let mut found = first;
    for item in rest {
        if item.order(found, steps)? == wanted {
            found = item;
        }
    }
    Ok(found.clone())
}

fn sum(items: &[Val]) -> Result<Val, Failure> {
    let mut total = match items.first() {
        None => return Ok(Val::Int(0)),
        Some(Val::Int(_)) => Val::Int(0),
        Some(Val::Uint(_)) => Val::Uint(0),
        Some(Val::Double(_)) => Val::Double(0.0),
        Some(Val::Duration(_)) => Val::Duration(SignedDuration::ZERO),
        Some(other) => return unfit("sum", other),
    };
    for item in items {
        let next = match (&total, item) {
            (Val::Int(one), Val::Int(two)) => one.checked_add(*two).map(Val::Int),
            (Val::Uint(one), Val::Uint(two)) => one.checked_add(*two).map(Val::Uint),
            (Val::Double(one), Val::Double(two)) => Some(Val::Double(one + two)),
            (Val::Duration(one), Val::Duration(two)) => one.checked_add(*two).map(Val::Duration),
            (_, other) => return unfit("sum", other),
        };
        total = next.ok_or_else(overflow)?;
    }
    Ok(total)
}
