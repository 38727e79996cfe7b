//! Functions of text. Positions are counted in characters.

use crate::value::{CelValue, no_matching_overload};
use crate::{EvalBudget, EvalError, format, mismatch};

/// The cost of compiling a pattern: some take milliseconds. Each is compiled once for all rules of a write.
const PATTERN_STEPS: usize = 10_000;

pub(crate) fn method(name: &str, of: &str, given: &[CelValue], steps: &mut EvalBudget) -> Result<CelValue, EvalError> {
    steps.spend_text(of.len())?;
    let argument = |at: usize| match given.get(at) {
        Some(CelValue::String(text)) => Some(&**text),
        _ => None,
    };
    let count = |at: usize| match given.get(at) {
        Some(CelValue::Int(number)) => Some(*number),
        _ => None,
    };
    match (name, argument(0)) {
        ("size", _) => Ok(index_value(of.chars().count())),
        ("contains", Some(part)) => {
            steps.spend_text(of.len())?;
            Ok(CelValue::Bool(of.contains(part)))
        }
        ("startsWith", Some(part)) => Ok(CelValue::Bool(of.starts_with(part))),
        ("endsWith", Some(part)) => Ok(CelValue::Bool(of.ends_with(part))),
        ("matches" | "find" | "findAll", Some(pattern)) => {
            let most = count(1).map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX));
            // As Kubernetes counts it: the text times a quarter of the pattern.
            steps.spend((of.len() / 10 + 1).saturating_mul(pattern.len() / 4 + 1))?;
            by_pattern(name, of, pattern, most, steps)
        }
        ("indexOf", Some(part)) => {
            let from = skip(of, count(1).unwrap_or(0))?;
            let found = of[from..].find(part).map(|at| of[..from + at].chars().count());
            Ok(found.map_or(CelValue::Int(-1), index_value))
        }
        ("lastIndexOf", Some(part)) => {
            Ok(of.rfind(part).map_or(CelValue::Int(-1), |at| index_value(of[..at].chars().count())))
        }
        ("replace", Some(part)) => {
            let Some(by) = argument(1) else { return no_matching_overload(name, &CelValue::text(of)) };
            let most = count(2).map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX));
            // An empty part is found between all characters.
            let places = if part.is_empty() { of.len() + 1 } else { of.matches(part).count() };
            steps.spend_text(of.len() + places.min(most).saturating_mul(by.len()))?;
            Ok(CelValue::text(of.replacen(part, by, most)))
        }
        ("split", Some(part)) => split(of, part, count(1), steps),
        ("charAt", None) => {
            let Some(at) = count(0) else { return no_matching_overload(name, &CelValue::text(of)) };
            let from = skip(of, at)?;
            Ok(CelValue::text(of[from..].chars().next().map(String::from).unwrap_or_default()))
        }
        ("substring", None) => {
            let Some(start) = count(0) else { return no_matching_overload(name, &CelValue::text(of)) };
            let start = skip(of, start)?;
            let end = count(1).map_or(Ok(of.len()), |end| skip(of, end))?;
            if start > end {
                mismatch("index out of range: a text that ends before it begins")
            } else {
                Ok(CelValue::text(&of[start..end]))
            }
        }
        ("format", None) => match given {
            [CelValue::List(values)] => format::fill(of, values, steps),
            _ => no_matching_overload(name, &CelValue::text(of)),
        },
        ("lowerAscii", _) => Ok(CelValue::text(of.to_ascii_lowercase())),
        ("upperAscii", _) => Ok(CelValue::text(of.to_ascii_uppercase())),
        ("trim", _) => Ok(CelValue::text(of.trim())),
        ("reverse", _) => Ok(CelValue::text(of.chars().rev().collect::<String>())),
        _ => no_matching_overload(name, &CelValue::text(of)),
    }
}

/// A pattern is compiled once for all rules of a write. The steps of a match are those of its engine, whatever the estimate is.
fn by_pattern(name: &str, of: &str, pattern: &str, most: usize, steps: &mut EvalBudget) -> Result<CelValue, EvalError> {
    if steps.patterns.get(pattern).is_none() {
        steps.spend(PATTERN_STEPS)?;
    }
    let EvalBudget { remaining, patterns, regex_caches } = steps;
    let regex = match patterns.get_or_compile(pattern) {
        Ok(regex) => regex,
        Err(why) => return mismatch(format!("{pattern:?} is not a regular expression: {why}")),
    };
    let mut spend = |steps: usize| {
        let left = remaining.checked_sub(steps as u64);
        *remaining = left.unwrap_or(0);
        left.is_some()
    };
    let exceeded = |_| EvalError::BudgetExceeded;
    if name == "matches" {
        return regex.is_match(of, regex_caches, &mut spend).map(CelValue::Bool).map_err(exceeded);
    }
    let most = if name == "find" { 1 } else { most };
    let found = regex.find_all(of, most, regex_caches, &mut spend).map_err(exceeded)?;
    let mut texts = found.into_iter().map(|range| CelValue::text(&of[range]));
    Ok(match name {
        "find" => texts.next().unwrap_or_else(|| CelValue::text("")),
        _ => CelValue::list(texts.collect()),
    })
}

fn index_value(at: usize) -> CelValue {
    CelValue::Int(i64::try_from(at).unwrap_or(i64::MAX))
}

/// The byte at which the character `at` begins; the end counts.
fn skip(text: &str, at: i64) -> Result<usize, EvalError> {
    let at = usize::try_from(at).ok();
    let found = at.and_then(|at| text.char_indices().map(|(byte, _)| byte).chain([text.len()]).nth(at));
    found.map_or_else(|| mismatch("index out of range"), Ok)
}

/// Parts are counted one by one: a text of a megabyte has a million.
fn split(of: &str, part: &str, most: Option<i64>, steps: &mut EvalBudget) -> Result<CelValue, EvalError> {
    let mut collect = |parts: &mut dyn Iterator<Item = CelValue>| {
        let mut found = Vec::new();
        for part in parts {
            steps.spend(1)?;
            found.push(part);
        }
        Ok(CelValue::list(found))
    };
    match most {
        Some(0) => collect(&mut std::iter::empty()),
        Some(most) if most > 0 => {
            collect(&mut of.splitn(usize::try_from(most).unwrap_or(usize::MAX), part).map(CelValue::text))
        }
        _ if part.is_empty() => collect(&mut of.chars().map(|one| CelValue::text(String::from(one)))),
        _ => collect(&mut of.split(part).map(CelValue::text)),
    }
}
