//! Converts a value to text, for `string()` and `%s`.

use crate::value::CelValue;
use crate::{EvalBudget, EvalError};

/// A value in words. Its parts are counted as they are written: a list may hold the same list many times over, so that the text
/// of a short rule's value would not fit into memory.
pub(crate) fn to_text(value: &CelValue, steps: &mut EvalBudget) -> Result<String, EvalError> {
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
        CelValue::Double(number) => double(*number),
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

/// A number as Go writes it when it is left to choose.
pub fn double(number: f64) -> String {
    if number.is_nan() {
        return "NaN".into();
    }
    if number.is_infinite() {
        return if number > 0.0 { "+Inf" } else { "-Inf" }.into();
    }
    let shortest = format!("{number:e}");
    let (mantissa, exponent) = shortest.split_once('e').unwrap_or((&shortest, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    // From here on Go leaves the plain form.
    if (-4..6).contains(&exponent) {
        return number.to_string();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs())
}
