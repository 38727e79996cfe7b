//! Functions of lists.

use std::cmp::Ordering;

use jiff::SignedDuration;

use crate::error::overflow;
use crate::value::{CelValue, no_matching_overload};
use crate::{EvalBudget, EvalError, mismatch};

pub(crate) fn method(
    name: &str,
    items: &[CelValue],
    given: &[CelValue],
    steps: &mut EvalBudget,
) -> Result<CelValue, EvalError> {
    steps.spend(items.len())?;
    match (name, given) {
        ("size", []) => Ok(index_value(items.len())),
        ("isSorted", []) => {
            for pair in items.windows(2) {
                if pair[0].compare(&pair[1], steps)? == Ordering::Greater {
                    return Ok(CelValue::Bool(false));
                }
            }
            Ok(CelValue::Bool(true))
        }
        ("min", []) => min_or_max(items, Ordering::Less, steps),
        ("max", []) => min_or_max(items, Ordering::Greater, steps),
        ("sum", []) => sum(items),
        ("indexOf", [wanted]) => {
            for (at, item) in items.iter().enumerate() {
                if item.equals(wanted, steps)? {
                    return Ok(index_value(at));
                }
            }
            Ok(CelValue::Int(-1))
        }
        ("lastIndexOf", [wanted]) => {
            for (at, item) in items.iter().enumerate().rev() {
                if item.equals(wanted, steps)? {
                    return Ok(index_value(at));
                }
            }
            Ok(CelValue::Int(-1))
        }
        ("join", _) => {
            let between = match given {
                [CelValue::String(text)] => &**text,
                _ => "",
            };
            let mut texts = Vec::new();
            for item in items {
                let CelValue::String(text) = item else { return no_matching_overload(name, item) };
                steps.spend_text(text.len() + between.len())?;
                texts.push(&**text);
            }
            Ok(CelValue::text(texts.join(between)))
        }
        ("reverse", []) => Ok(CelValue::list(items.iter().rev().cloned().collect())),
        _ => no_matching_overload(name, &CelValue::list(Vec::new())),
    }
}

/// `sets.contains(all, some)` and its like.
pub(crate) fn sets(name: &str, given: &[CelValue], steps: &mut EvalBudget) -> Result<CelValue, EvalError> {
    let [CelValue::List(one), CelValue::List(two)] = given else {
        return mismatch(format!("no such overload: {name}"));
    };
    let has = |all: &[CelValue], wanted: &CelValue, steps: &mut EvalBudget| -> Result<bool, EvalError> {
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
    Ok(CelValue::Bool(truth))
}

pub(crate) fn index_value(at: usize) -> CelValue {
    CelValue::Int(i64::try_from(at).unwrap_or(i64::MAX))
}

fn min_or_max(items: &[CelValue], wanted: Ordering, steps: &mut EvalBudget) -> Result<CelValue, EvalError> {
    let Some((first, rest)) = items.split_first() else {
        return mismatch("an empty list has neither min nor max");
    };
    let mut found = first;
    for item in rest {
        if item.compare(found, steps)? == wanted {
            found = item;
        }
    }
    Ok(found.clone())
}

fn sum(items: &[CelValue]) -> Result<CelValue, EvalError> {
    let mut total = match items.first() {
        None => return Ok(CelValue::Int(0)),
        Some(CelValue::Int(_)) => CelValue::Int(0),
        Some(CelValue::Uint(_)) => CelValue::Uint(0),
        Some(CelValue::Double(_)) => CelValue::Double(0.0),
        Some(CelValue::Duration(_)) => CelValue::Duration(SignedDuration::ZERO),
        Some(other) => return no_matching_overload("sum", other),
    };
    for item in items {
        let next = match (&total, item) {
            (CelValue::Int(one), CelValue::Int(two)) => one.checked_add(*two).map(CelValue::Int),
            (CelValue::Uint(one), CelValue::Uint(two)) => one.checked_add(*two).map(CelValue::Uint),
            (CelValue::Double(one), CelValue::Double(two)) => Some(CelValue::Double(one + two)),
            (CelValue::Duration(one), CelValue::Duration(two)) => one.checked_add(*two).map(CelValue::Duration),
            (_, other) => return no_matching_overload("sum", other),
        };
        total = next.ok_or_else(overflow)?;
    }
    Ok(total)
}
