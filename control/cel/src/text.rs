//! What can be asked of text. Places in it are counted in characters.

use regex::{Regex, RegexBuilder};

use super::functions::no_matching_overload;
use super::value::CelValue;
use super::{EvalBudget, EvalError, format, mismatch};

/// What reading a pattern counts as: some take milliseconds. Each is read once for all rules of a write.
const PATTERN_STEPS: usize = 10_000;
/// Bytes that a pattern may take compiled.
const PATTERN_BYTES_MAX: usize = 1 << 20;

pub(super) fn method(name: &str, of: &str, given: &[CelValue], steps: &mut EvalBudget) -> Result<CelValue, EvalError> {
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
            by_pattern(name, of, &expression(pattern, steps)?, most, steps)
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

fn by_pattern(
    name: &str,
    of: &str,
    pattern: &Regex,
    most: usize,
    steps: &mut EvalBudget,
) -> Result<CelValue, EvalError> {
    match name {
        "matches" => Ok(CelValue::Bool(pattern.is_match(of))),
        "find" => Ok(CelValue::text(pattern.find(of).map_or("", |found| found.as_str()))),
        _ => {
            let mut all = Vec::new();
            for found in pattern.find_iter(of).take(most) {
                // Each look may go through what is left to its end.
                steps.spend((of.len() - found.start()) / 50 + 1)?;
                all.push(CelValue::text(found.as_str()));
            }
            Ok(CelValue::list(all))
        }
    }
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

fn expression(pattern: &str, steps: &mut EvalBudget) -> Result<Regex, EvalError> {
    if let Some(known) = steps.patterns.get(pattern) {
        return Ok(known.clone());
    }
    steps.spend(PATTERN_STEPS)?;
    let Ok(built) = is_pattern(pattern) else {
        return mismatch(format!("{pattern:?} is no regular expression"));
    };
    steps.patterns.insert(pattern.to_owned(), built.clone());
    Ok(built)
}

pub(super) fn is_pattern(pattern: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(pattern).size_limit(PATTERN_BYTES_MAX).build()
}

fn split(of: &str, part: &str, most: Option<i64>, steps: &mut EvalBudget) -> Result<CelValue, EvalError> {
    let parts: Vec<CelValue> = match most {
        Some(0) => Vec::new(),
        Some(most) if most > 0 => {
            of.splitn(usize::try_from(most).unwrap_or(usize::MAX), part).map(CelValue::text).collect()
        }
        _ if part.is_empty() => of.chars().map(|one| CelValue::text(String::from(one))).collect(),
        _ => of.split(part).map(CelValue::text).collect(),
    };
    steps.spend(parts.len())?;
    Ok(CelValue::list(parts))
}

/// A value in words. Its parts are counted as they are written: a list may hold the same list many times over, so that a
/// short rule makes one that nobody has room to write down.
pub(super) fn to_text(value: &CelValue, steps: &mut EvalBudget) -> Result<String, EvalError> {
    append_text(value, false, steps)
}

/// `within`: a text within a list or a map has quotes.
fn append_text(value: &CelValue, within: bool, steps: &mut EvalBudget) -> Result<String, EvalError> {
    steps.spend(1)?;
    let text = match value {
        CelValue::Null => "null".into(),
        CelValue::Bool(one) => one.to_string(),
        CelValue::Int(number) => number.to_string(),
        CelValue::Uint(number) => number.to_string(),
        CelValue::Double(number) => format::double(*number),
        CelValue::String(text) if within => format!("\"{text}\""),
        CelValue::String(text) => text.to_string(),
        CelValue::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        CelValue::List(items) => {
            let items: Result<Vec<_>, _> = items.iter().map(|item| append_text(item, true, steps)).collect();
            format!("[{}]", items?.join(", "))
        }
        CelValue::Map(fields) => {
            let mut pairs = Vec::with_capacity(fields.len());
            for (key, value) in fields.iter() {
                pairs.push(format!("{}:{}", append_text(&key.value(), true, steps)?, append_text(value, true, steps)?));
            }
            format!("{{{}}}", pairs.join(", "))
        }
        CelValue::Duration(span) => format!("{}s", span.as_secs_f64()),
        CelValue::Timestamp(moment) => moment.to_string(),
        CelValue::Quantity(amount) if amount % 1000 == 0 => (amount / 1000).to_string(),
        CelValue::Quantity(amount) => format!("{amount}m"),
        CelValue::Ip(address) => address.to_string(),
        CelValue::Cidr(start, bits) => format!("{start}/{bits}"),
        CelValue::Url(url) => url.to_string(),
        CelValue::Format(format) => format.name.into(),
        CelValue::Type(name) => (*name).into(),
        CelValue::Optional(None) => "none".into(),
        CelValue::Optional(Some(inner)) => append_text(inner, within, steps)?,
    };
    steps.spend_text(text.len())?;
    Ok(text)
}
