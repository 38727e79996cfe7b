//! Functions: CEL's own, and those that Kubernetes adds for rules about objects.

use std::sync::Arc;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::error::{EvalError, mismatch, overflow};
use crate::formats::{self, NamedFormat};
use crate::value::{CelValue, duration, no_matching_overload};
use crate::{EvalBudget, collections, net, text, to_text};

/// The cost of a look-up of a time zone by its name: it may have to be read from the disk.
const ZONE_STEPS: usize = 1000;

fn text_bytes(value: &CelValue) -> usize {
    match value {
        CelValue::String(text) | CelValue::Url(text) => text.len(),
        CelValue::Bytes(bytes) => bytes.len(),
        _ => 0,
    }
}

pub(crate) fn function(name: &str, given: &[CelValue], steps: &mut EvalBudget) -> Result<CelValue, EvalError> {
    if let Some(name) = name.strip_prefix(formats::NAMESPACE) {
        return format_function(name, given, steps);
    }
    let Some(first) = given.first() else { return Ok(CelValue::Optional(None)) };
    let text = match first {
        CelValue::String(text) => Some(&**text),
        _ => None,
    };
    steps.spend_text(text_bytes(first))?;
    match (name, text) {
        ("dyn", _) => Ok(first.clone()),
        ("type", _) => Ok(CelValue::Type(first.type_name())),
        ("optional.of", _) => Ok(CelValue::Optional(Some(Arc::new(first.clone())))),
        ("size" | "matches", _) => method(name, first, &given[1..], steps),
        ("isIP", Some(text)) => Ok(CelValue::Bool(net::address(text).is_some())),
        ("ip", Some(text)) => {
            net::address(text).map_or_else(|| conversion_error(name, text), |found| Ok(CelValue::Ip(found)))
        }
        ("isCIDR", Some(text)) => Ok(CelValue::Bool(net::range(text).is_some())),
        ("cidr", Some(text)) => net::range(text)
            .map_or_else(|| conversion_error(name, text), |(start, bits)| Ok(CelValue::Cidr(start, bits))),
        ("isURL", Some(text)) => Ok(CelValue::Bool(formats::is_url(text))),
        ("url", Some(text)) if formats::is_url(text) => Ok(CelValue::Url(text.into())),
        ("url", Some(text)) => conversion_error(name, text),
        ("sets.contains" | "sets.equivalent" | "sets.intersects", None) => collections::sets(name, given, steps),
        ("isQuantity", Some(text)) => Ok(CelValue::Bool(parse_quantity(text).is_some())),
        ("quantity", Some(text)) => {
            parse_quantity(text).map_or_else(|| conversion_error(name, text), |found| Ok(CelValue::Quantity(found)))
        }
        ("duration", Some(text)) => {
            duration(text).map_or_else(|| conversion_error(name, text), |found| Ok(CelValue::Duration(found)))
        }
        ("timestamp", Some(text)) => text
            .parse::<Timestamp>()
            .map_or_else(|_| conversion_error(name, text), |found| Ok(CelValue::Timestamp(found))),
        _ => convert(name, first, steps),
    }
}

fn conversion_error(name: &str, text: &str) -> Result<CelValue, EvalError> {
    mismatch(format!("{text:?} is no {name}"))
}

/// `1.5Gi`, `250m`, `4`: in thousandths, rounded up.
fn parse_quantity(text: &str) -> Option<i128> {
    const UNITS: [(&str, i128); 13] = [
        ("Ki", 1 << 10),
        ("Mi", 1 << 20),
        ("Gi", 1 << 30),
        ("Ti", 1 << 40),
        ("Pi", 1 << 50),
        ("Ei", 1 << 60),
        ("k", 1_000),
        ("M", 1_000_000),
        ("G", 1_000_000_000),
        ("T", 1_000_000_000_000),
        ("P", 1_000_000_000_000_000),
        ("E", 1_000_000_000_000_000_000),
        ("", 1),
    ];
    let (sign, text) = match text.strip_prefix('-') {
        Some(text) => (-1, text),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let scale = match unit {
        "m" => 1,
        unit => UNITS.iter().find(|(known, _)| *known == unit)?.1 * 1000,
    };
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && part.is_empty()) || whole.len() > 18 || part.len() > 18 || part.contains('.') {
        return None;
    }
    let digits = |text: &str| if text.is_empty() { Some(0) } else { text.parse::<i128>().ok() };
    let tens = 10_i128.pow(u32::try_from(part.len()).ok()?);
    let fraction = digits(part)?.checked_mul(scale)?;
    let rounded = fraction / tens + i128::from(fraction % tens != 0);
    Some(sign * digits(whole)?.checked_mul(scale)?.checked_add(rounded)?)
}

/// One of the types, called as a function.
fn convert(name: &str, of: &CelValue, steps: &mut EvalBudget) -> Result<CelValue, EvalError> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "checked, or as CEL does it"
    )]
    let found = match (name, of) {
        ("int", CelValue::Int(_)) | ("uint", CelValue::Uint(_)) | ("double", CelValue::Double(_)) => Some(of.clone()),
        ("bool", CelValue::Bool(_)) | ("string", CelValue::String(_)) | ("bytes", CelValue::Bytes(_)) => {
            Some(of.clone())
        }
        ("duration", CelValue::Duration(_)) | ("timestamp", CelValue::Timestamp(_)) => Some(of.clone()),
        ("int", CelValue::Uint(number)) => i64::try_from(*number).ok().map(CelValue::Int),
        ("int", CelValue::Double(number)) if number.abs() < 9.2e18 => Some(CelValue::Int(*number as i64)),
        ("int", CelValue::String(text)) => text.parse().ok().map(CelValue::Int),
        ("int", CelValue::Timestamp(moment)) => Some(CelValue::Int(moment.as_second())),
        ("uint", CelValue::Int(number)) => u64::try_from(*number).ok().map(CelValue::Uint),
        ("uint", CelValue::Double(number)) if (0.0..1.8e19).contains(number) => Some(CelValue::Uint(*number as u64)),
        ("uint", CelValue::String(text)) => text.parse().ok().map(CelValue::Uint),
        ("double", CelValue::Int(number)) => Some(CelValue::Double(*number as f64)),
        ("double", CelValue::Uint(number)) => Some(CelValue::Double(*number as f64)),
        ("double", CelValue::String(text)) => text.parse().ok().map(CelValue::Double),
        ("bool", CelValue::String(text)) => match &**text {
            "true" | "True" | "TRUE" | "t" | "1" => Some(CelValue::Bool(true)),
            "false" | "False" | "FALSE" | "f" | "0" => Some(CelValue::Bool(false)),
            _ => None,
        },
        ("string", CelValue::Bytes(bytes)) => String::from_utf8(bytes.to_vec()).ok().map(CelValue::text),
        (
            "string",
            CelValue::Null | CelValue::List(_) | CelValue::Map(_) | CelValue::Optional(_) | CelValue::Type(_),
        ) => None,
        ("string", other) => Some(CelValue::text(to_text::to_text(other, steps)?)),
        ("bytes", CelValue::String(text)) => Some(CelValue::Bytes(text.as_bytes().into())),
        ("timestamp", CelValue::Int(second)) => Timestamp::from_second(*second).ok().map(CelValue::Timestamp),
        _ => return no_matching_overload(name, of),
    };
    found.map_or_else(|| mismatch(format!("a {} that is no {name}", of.type_name())), Ok)
}

pub(crate) fn method(
    name: &str,
    of: &CelValue,
    given: &[CelValue],
    steps: &mut EvalBudget,
) -> Result<CelValue, EvalError> {
    // Looking for a part costs its length too, however short the text is; an error repeats it.
    steps.spend_text(given.iter().map(text_bytes).sum())?;
    match of {
        CelValue::String(of) => text::method(name, of, given, steps),
        CelValue::List(items) => collections::method(name, items, given, steps),
        CelValue::Map(fields) if name == "size" => Ok(CelValue::Int(i64::try_from(fields.len()).unwrap_or(i64::MAX))),
        CelValue::Bytes(bytes) if name == "size" => Ok(CelValue::Int(i64::try_from(bytes.len()).unwrap_or(i64::MAX))),
        CelValue::Optional(inner) => optional(name, inner.as_ref(), of, given),
        CelValue::Timestamp(moment) => {
            steps.spend(if given.is_empty() { 0 } else { ZONE_STEPS })?;
            timestamp_part(name, *moment, given)
        }
        CelValue::Duration(span) => {
            let seconds = span.as_secs();
            match name {
                "getHours" => Ok(CelValue::Int(seconds / 3600)),
                "getMinutes" => Ok(CelValue::Int(seconds / 60)),
                "getSeconds" => Ok(CelValue::Int(seconds)),
                "getMilliseconds" => Ok(CelValue::Int(i64::try_from(span.as_millis()).unwrap_or(i64::MAX))),
                _ => no_matching_overload(name, of),
            }
        }
        CelValue::Quantity(amount) => quantity(name, *amount, given),
        CelValue::Ip(address) => net::of_address(name, *address),
        CelValue::Cidr(start, bits) => net::of_range(name, (*start, *bits), given),
        CelValue::Url(url) => net::of_url(name, url, steps),
        CelValue::Format(format) => validate(format, name, given, steps),
        _ => no_matching_overload(name, of),
    }
}

fn optional(
    name: &str,
    inner: Option<&Arc<CelValue>>,
    of: &CelValue,
    given: &[CelValue],
) -> Result<CelValue, EvalError> {
    match (name, inner, given) {
        ("hasValue", inner, _) => Ok(CelValue::Bool(inner.is_some())),
        ("value" | "orValue", Some(inner), _) => Ok(CelValue::clone(inner)),
        ("or", Some(_), _) => Ok(of.clone()),
        ("orValue" | "or", None, [other]) => Ok(other.clone()),
        ("value", None, _) => mismatch("optional.none() has no value"),
        _ => no_matching_overload(name, of),
    }
}

/// A part of a moment, in UTC or the time zone that is named.
fn timestamp_part(name: &str, moment: Timestamp, given: &[CelValue]) -> Result<CelValue, EvalError> {
    let zone = match given {
        [] => TimeZone::UTC,
        [CelValue::String(zone)] => match TimeZone::get(zone) {
            Ok(zone) => zone,
            Err(_) => return mismatch(format!("{zone:?} is not a time zone")),
        },
        [other, ..] => return no_matching_overload(name, other),
    };
    let there = moment.to_zoned(zone);
    let found = match name {
        "getFullYear" => i64::from(there.year()),
        "getMonth" => i64::from(there.month()) - 1,
        "getDate" => i64::from(there.day()),
        "getDayOfMonth" => i64::from(there.day()) - 1,
        "getDayOfWeek" => i64::from(there.weekday().to_sunday_zero_offset()),
        "getDayOfYear" => i64::from(there.day_of_year()) - 1,
        "getHours" => i64::from(there.hour()),
        "getMinutes" => i64::from(there.minute()),
        "getSeconds" => i64::from(there.second()),
        "getMilliseconds" => i64::from(there.millisecond()),
        _ => return no_matching_overload(name, &CelValue::Timestamp(moment)),
    };
    Ok(CelValue::Int(found))
}

fn quantity(name: &str, amount: i128, given: &[CelValue]) -> Result<CelValue, EvalError> {
    let other = match given {
        [CelValue::Quantity(other)] => Some(*other),
        [CelValue::Int(number)] => Some(i128::from(*number) * 1000),
        _ => None,
    };
    let sum = |found: Option<i128>| found.map(CelValue::Quantity).ok_or_else(overflow);
    match (name, other) {
        ("isGreaterThan", Some(other)) => Ok(CelValue::Bool(amount > other)),
        ("isLessThan", Some(other)) => Ok(CelValue::Bool(amount < other)),
        ("compareTo", Some(other)) => Ok(CelValue::Int(amount.cmp(&other) as i64)),
        ("add", Some(other)) => sum(amount.checked_add(other)),
        ("sub", Some(other)) => sum(amount.checked_sub(other)),
        ("sign", None) => Ok(CelValue::Int(i64::try_from(amount.signum()).unwrap_or(0))),
        ("isInteger", None) => Ok(CelValue::Bool(amount % 1000 == 0)),
        ("asInteger", None) if amount % 1000 == 0 => {
            i64::try_from(amount / 1000).map(CelValue::Int).map_err(|_| overflow())
        }
        _ => no_matching_overload(name, &CelValue::Quantity(amount)),
    }
}

/// `format.NAME()`, and `format.named("NAME")`.
fn format_function(name: &str, given: &[CelValue], steps: &mut EvalBudget) -> Result<CelValue, EvalError> {
    match (given, formats::by_name(name)) {
        ([], Some(format)) => Ok(CelValue::Format(format)),
        ([CelValue::String(wanted)], _) if name == "named" => {
            steps.spend_text(wanted.len())?;
            Ok(CelValue::Optional(formats::by_name(wanted).map(|format| Arc::new(CelValue::Format(format)))))
        }
        _ => mismatch(format!("no such overload: {}{name}", formats::NAMESPACE)),
    }
}

fn validate(
    format: &'static NamedFormat,
    name: &str,
    given: &[CelValue],
    steps: &mut EvalBudget,
) -> Result<CelValue, EvalError> {
    let ("validate", [CelValue::String(text)]) = (name, given) else {
        return mismatch(format!("no such overload: {name} of a format"));
    };
    steps.spend_text(text.len())?;
    let problem = (format.validate)(text).map(|why| Arc::new(CelValue::list(vec![CelValue::text(why)])));
    Ok(CelValue::Optional(problem))
}
