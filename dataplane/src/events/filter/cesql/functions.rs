//! The functions of X-SQL-08. Characters are Unicode code points.

use std::borrow::Cow;

use super::eval::{Scope, evaluate};
use super::{Fault, Node, TEXT_BYTES_MAX, Value};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Function {
    Length,
    Concat,
    ConcatWs,
    Lower,
    Upper,
    Trim,
    Left,
    Right,
    Substring,
    Abs,
    Int,
    Bool,
    String,
    IsInt,
    IsBool,
}

/// Name, function, fewest and most arguments.
const FUNCTIONS: [(&str, Function, usize, usize); 15] = [
    ("LENGTH", Function::Length, 1, 1),
    ("CONCAT", Function::Concat, 0, usize::MAX),
    ("CONCAT_WS", Function::ConcatWs, 1, usize::MAX),
    ("LOWER", Function::Lower, 1, 1),
    ("UPPER", Function::Upper, 1, 1),
    ("TRIM", Function::Trim, 1, 1),
    ("LEFT", Function::Left, 2, 2),
    ("RIGHT", Function::Right, 2, 2),
    ("SUBSTRING", Function::Substring, 2, 3),
    ("ABS", Function::Abs, 1, 1),
    ("INT", Function::Int, 1, 1),
    ("BOOL", Function::Bool, 1, 1),
    ("STRING", Function::String, 1, 1),
    ("IS_INT", Function::IsInt, 1, 1),
    ("IS_BOOL", Function::IsBool, 1, 1),
];

impl Function {
    pub(super) fn find(name: &str, arguments: usize) -> Option<Self> {
        let found = FUNCTIONS.iter().find(|(known, _, min, max)| {
            name.eq_ignore_ascii_case(known) && (*min..=*max).contains(&arguments)
        });
        found.map(|(_, function, ..)| *function)
    }

    /// `arguments` are as many as [`Function::find`] was asked for.
    pub(super) fn call<'e>(self, arguments: &'e [Node], scope: Scope<'e>) -> Result<Value<'e>, Fault<'e>> {
        let (first, others) = match arguments.split_first() {
            Some((first, others)) => (evaluate(first, scope)?, others),
            None => return Ok(Value::Text(Cow::Borrowed(""))), // CONCAT()
        };
        // Every function goes through its text once or twice; CONCAT copies each argument once.
        scope.steps.take_text(2 * first.text_bytes())?;
        let number = |at: usize| others.get(at).map(|node| evaluate(node, scope)?.integer()).transpose();
        Ok(match self {
            Self::Length => Value::Integer(count(&first.text())?),
            Self::Concat => Value::Text(join(Some(first), "", others, scope)?),
            Self::ConcatWs => Value::Text(join(None, &first.text(), others, scope)?),
            Self::Lower | Self::Upper => {
                let text = first.text();
                scope.steps.take(text.len())?; // character by character
                Value::Text(if self == Self::Lower { lower(text) } else { upper(text) })
            }
            Self::Trim => Value::Text(cut(first.text(), |text| text.trim())),
            Self::Left => Value::Text(left(first.text(), number(0)?.unwrap_or_default())?),
            Self::Right => Value::Text(right(first.text(), number(0)?.unwrap_or_default())?),
            Self::Substring => {
                let position = number(0)?.unwrap_or_default();
                Value::Text(substring(first.text(), position, number(1)?)?)
            }
            Self::Abs => Value::Integer(first.integer()?.checked_abs().ok_or(Fault::Overflow)?),
            Self::Int => Value::Integer(first.integer()?),
            Self::Bool => Value::Boolean(first.boolean()?),
            Self::String => Value::Text(first.text()),
            Self::IsInt => Value::Boolean(first.integer().is_ok()),
            Self::IsBool => Value::Boolean(first.boolean().is_ok()),
        })
    }
}

fn count<'e>(text: &str) -> Result<i32, Fault<'e>> {
    i32::try_from(text.chars().count()).map_err(|_| Fault::Overflow)
}

/// Allocates: the text stands nowhere yet.
fn join<'e>(
    first: Option<Value<'e>>,
    separator: &str,
    others: &'e [Node],
    scope: Scope<'e>,
) -> Result<Cow<'e, str>, Fault<'e>> {
    let mut is_begun = first.is_some();
    let mut joined = first.map(|first| first.text().into_owned()).unwrap_or_default();
    for other in others {
        let other = evaluate(other, scope)?.text();
        scope.steps.take_text(separator.len() + other.len())?;
        if joined.len() + separator.len() + other.len() > TEXT_BYTES_MAX {
            return Err(Fault::TooLong);
        }
        if std::mem::replace(&mut is_begun, true) {
            joined.push_str(separator);
        }
        joined.push_str(&other);
    }
    Ok(Cow::Owned(joined))
}

/// Allocates only when there is something to change.
fn lower(text: Cow<'_, str>) -> Cow<'_, str> {
    if text.chars().all(|c| c.is_ascii() && !c.is_ascii_uppercase()) {
        return text;
    }
    Cow::Owned(text.to_lowercase())
}

fn upper(text: Cow<'_, str>) -> Cow<'_, str> {
    if text.chars().all(|c| c.is_ascii() && !c.is_ascii_lowercase()) {
        return text;
    }
    Cow::Owned(text.to_uppercase())
}

/// A part of a text, without a copy if the text is borrowed.
fn cut<'e>(text: Cow<'e, str>, part: impl for<'t> Fn(&'t str) -> &'t str) -> Cow<'e, str> {
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(part(text)),
        Cow::Owned(text) => Cow::Owned(part(&text).to_owned()),
    }
}

fn left<'e>(text: Cow<'e, str>, characters: i32) -> Result<Cow<'e, str>, Fault<'e>> {
    let characters = usize::try_from(characters).map_err(|_| Fault::Argument("LEFT"))?;
    Ok(cut(text, |text| &text[..offset(text, characters)]))
}

fn right<'e>(text: Cow<'e, str>, characters: i32) -> Result<Cow<'e, str>, Fault<'e>> {
    let characters = usize::try_from(characters).map_err(|_| Fault::Argument("RIGHT"))?;
    let skipped = text.chars().count().saturating_sub(characters);
    Ok(cut(text, |text| &text[offset(text, skipped)..]))
}

/// From `position`, counted from 1 or from the end; position 0 is nowhere, and gives nothing.
fn substring<'e>(text: Cow<'e, str>, position: i32, length: Option<i32>) -> Result<Cow<'e, str>, Fault<'e>> {
    const OUT: Fault<'static> = Fault::Argument("SUBSTRING");
    let characters = text.chars().count();
    let distance = usize::try_from(position.unsigned_abs()).map_err(|_| OUT)?;
    let length = length.map_or(Ok(characters), |length| usize::try_from(length).map_err(|_| OUT))?;
    if distance > characters {
        return Err(OUT);
    }
    let skipped = match position {
        0 => return Ok(Cow::Borrowed("")),
        1.. => distance - 1,
        _ => characters - distance,
    };
    Ok(cut(text, |text| {
        let rest = &text[offset(text, skipped)..];
        &rest[..offset(rest, length)]
    }))
}

/// Where the character after the first `characters` begins; the end if there are no more.
fn offset(text: &str, characters: usize) -> usize {
    text.char_indices().nth(characters).map_or(text.len(), |(at, _)| at)
}
