//! What can be asked of text. Places in it are counted in characters.

use regex::{Regex, RegexBuilder};

use super::call::unfit;
use super::value::Val;
use super::{Failure, Steps, format, wrong};

/// What reading a pattern counts as: some take milliseconds. Each is read once for all rules of a write.
const PATTERN_STEPS: usize = 10_000;
/// Bytes that a pattern may take compiled.
const PATTERN_BYTES_MAX: usize = 1 << 20;

pub(super) fn method(name: &str, of: &str, given: &[Val], steps: &mut Steps) -> Result<Val, Failure> {
    steps.text(of.len())?;
    let argument = |at: usize| match given.get(at) {
        Some(Val::Text(text)) => Some(&**text),
        _ => None,
    };
    let count = |at: usize| match given.get(at) {
        Some(Val::Int(number)) => Some(*number),
        _ => None,
    };
    match (name, argument(0)) {
        ("size", _) => Ok(place(of.chars().count())),
        ("contains", Some(part)) => {
            steps.text(of.len())?;
            Ok(Val::Bool(of.contains(part)))
        }
        ("startsWith", Some(part)) => Ok(Val::Bool(of.starts_with(part))),
        ("endsWith", Some(part)) => Ok(Val::Bool(of.ends_with(part))),
        ("matches" | "find" | "findAll", Some(pattern)) => {
            let most = count(1).map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX));
            // As Kubernetes counts it: the text times a quarter of the pattern.
            steps.take((of.len() / 10 + 1).saturating_mul(pattern.len() / 4 + 1))?;
            by_pattern(name, of, &expression(pattern, steps)?, most, steps)
        }
        ("indexOf", Some(part)) => {
            let from = skip(of, count(1).unwrap_or(0))?;
            let found = of[from..].find(part).map(|at| of[..from + at].chars().count());
            Ok(found.map_or(Val::Int(-1), place))
        }
        ("lastIndexOf", Some(part)) => {
            Ok(of.rfind(part).map_or(Val::Int(-1), |at| place(of[..at].chars().count())))
        }
        ("replace", Some(part)) => {
            let Some(by) = argument(1) else { return unfit(name, &Val::text(of)) };
            let most = count(2).map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX));
            // An empty part is found between all characters.
            let places = if part.is_empty() { of.len() + 1 } else { of.matches(part).count() };
            steps.text(of.len() + places.min(most).saturating_mul(by.len()))?;
            Ok(Val::text(of.replacen(part, by, most)))
        }
        ("split", Some(part)) => split(of, part, count(1), steps),
        ("charAt", None) => {
            let Some(at) = count(0) else { return unfit(name, &Val::text(of)) };
            let from = skip(of, at)?;
            Ok(Val::text(of[from..].chars().next().map(String::from).unwrap_or_default()))
        }
        ("substring", None) => {
            let Some(start) = count(0) else { return unfit(name, &Val::text(of)) };
            let start = skip(of, start)?;
            let end = count(1).map_or(Ok(of.len()), |end| skip(of, end))?;
            if start > end {
                wrong("index out of range: a text that ends before it begins")
            } else {
                Ok(Val::text(&of[start..end]))
            }
        }
        ("format", None) => match given {
            [Val::List(values)] => format::fill(of, values, steps),
            _ => unfit(name, &Val::text(of)),
        },
        ("lowerAscii", _) => Ok(Val::text(of.to_ascii_lowercase())),
        ("upperAscii", _) => Ok(Val::text(of.to_ascii_uppercase())),
        ("trim", _) => Ok(Val::text(of.trim())),
        ("reverse", _) => Ok(Val::text(of.chars().rev().collect::<String>())),
        _ => unfit(name, &Val::text(of)),
    }
}

fn by_pattern(name: &str, of: &str, pattern: &Regex, most: usize, steps: &mut Steps) -> Result<Val, Failure> {
    match name {
        "matches" => Ok(Val::Bool(pattern.is_match(of))),
        "find" => Ok(Val::text(pattern.find(of).map_or("", |found| found.as_str()))),
        _ => {
            let mut all = Vec::new();
            for found in pattern.find_iter(of).take(most) {
                // Each look may go through what is left to its end.
                steps.take((of.len() - found.start()) / 50 + 1)?;
                all.push(Val::text(found.as_str()));
            }
            Ok(Val::list(all))
        }
    }
}

fn place(at: usize) -> Val {
    Val::Int(i64::try_from(at).unwrap_or(i64::MAX))
}

/// The byte at which the character `at` begins; the end counts.
fn skip(text: &str, at: i64) -> Result<usize, Failure> {
    let at = usize::try_from(at).ok();
    let found = at.and_then(|at| text.char_indices().map(|(byte, _)| byte).chain([text.len()]).nth(at));
    found.map_or_else(|| wrong("index out of range"), Ok)
}

fn expression(pattern: &str, steps: &mut Steps) -> Result<Regex, Failure> {
    if let Some(known) = steps.patterns.get(pattern) {
        return Ok(known.clone());
    }
    steps.take(PATTERN_STEPS)?;
    let Ok(built) = is_pattern(pattern) else {
        return wrong(format!("{pattern:?} is no regular expression"));
    };
    steps.patterns.insert(pattern.to_owned(), built.clone());
    Ok(built)
}

pub(super) fn is_pattern(pattern: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(pattern).size_limit(PATTERN_BYTES_MAX).build()
}

fn split(of: &str, part: &str, most: Option<i64>, steps: &mut Steps) -> Result<Val, Failure> {
    let parts: Vec<Val> = match most {
        Some(0) => Vec::new(),
        Some(most) if most > 0 => {
            of.splitn(usize::try_from(most).unwrap_or(usize::MAX), part).map(Val::text).collect()
        }
        _ if part.is_empty() => of.chars().map(|one| Val::text(String::from(one))).collect(),
        _ => of.split(part).map(Val::text).collect(),
    };
    steps.take(parts.len())?;
    Ok(Val::list(parts))
}

/// A value in words. Its parts are counted as they are written: a list may hold the same list many times over, so that a
/// short rule makes one that nobody has room to write down.
pub(super) fn written(value: &Val, steps: &mut Steps) -> Result<String, Failure> {
    in_words(value, false, steps)
}

/// `within`: a text within a list or a map has quotes.
fn in_words(value: &Val, within: bool, steps: &mut Steps) -> Result<String, Failure> {
    steps.take(1)?;
    let text = match value {
        Val::Null => "null".into(),
        Val::Bool(one) => one.to_string(),
        Val::Int(number) => number.to_string(),
        Val::Uint(number) => number.to_string(),
        Val::Double(number) => format::double(*number),
        Val::Text(text) if within => format!("\"{text}\""),
        Val::Text(text) => text.to_string(),
        Val::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Val::List(items) => {
            let items: Result<Vec<_>, _> = items.iter().map(|item| in_words(item, true, steps)).collect();
            format!("[{}]", items?.join(", "))
        }
        Val::Map(fields) => {
            let mut pairs = Vec::with_capacity(fields.len());
            for (key, value) in fields.iter() {
                pairs.push(format!(
                    "{}:{}",
                    in_words(&key.value(), true, steps)?,
                    in_words(value, true, steps)?
                ));
            }
            format!("{{{}}}", pairs.join(", "))
        }
        Val::Duration(span) => format!("{}s", span.as_secs_f64()),
        Val::Moment(moment) => moment.to_string(),
        Val::Quantity(amount) if amount % 1000 == 0 => (amount / 1000).to_string(),
        Val::Quantity(amount) => format!("{amount}m"),
        Val::Address(address) => address.to_string(),
        Val::Range(start, bits) => format!("{start}/{bits}"),
        Val::Url(url) => url.to_string(),
        Val::Format(format) => format.name.into(),
        Val::Type(name) => (*name).into(),
        Val::Optional(None) => "none".into(),
        Val::Optional(Some(inner)) => in_words(inner, within, steps)?,
    };
    steps.text(text.len())?;
    Ok(text)
}
