//! The functions of X-SQL-08. Characters are Unicode code points.

use std::borrow::Cow;

use super::eval::{EvaluationScope, evaluate};
use super::{CesqlError, CesqlNode, CesqlValue, TEXT_BYTES_MAX};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CesqlFunction {
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
const FUNCTIONS: [(&str, CesqlFunction, usize, usize); 15] = [
    ("LENGTH", CesqlFunction::Length, 1, 1),
    ("CONCAT", CesqlFunction::Concat, 0, usize::MAX),
    ("CONCAT_WS", CesqlFunction::ConcatWs, 1, usize::MAX),
    ("LOWER", CesqlFunction::Lower, 1, 1),
    ("UPPER", CesqlFunction::Upper, 1, 1),
    ("TRIM", CesqlFunction::Trim, 1, 1),
    ("LEFT", CesqlFunction::Left, 2, 2),
    ("RIGHT", CesqlFunction::Right, 2, 2),
    ("SUBSTRING", CesqlFunction::Substring, 2, 3),
    ("ABS", CesqlFunction::Abs, 1, 1),
    ("INT", CesqlFunction::Int, 1, 1),
    ("BOOL", CesqlFunction::Bool, 1, 1),
    ("STRING", CesqlFunction::String, 1, 1),
    ("IS_INT", CesqlFunction::IsInt, 1, 1),
    ("IS_BOOL", CesqlFunction::IsBool, 1, 1),
];

impl CesqlFunction {
    pub(super) fn find(name: &str, arguments: usize) -> Option<Self> {
        let found = FUNCTIONS
            .iter()
            .find(|(known, _, min, max)| name.eq_ignore_ascii_case(known) && (*min..=*max).contains(&arguments));
        found.map(|(_, function, ..)| *function)
    }

    /// The number of `arguments` was checked by [`CesqlFunction::find`].
    pub(super) fn call<'e>(
        self,
        arguments: &'e [CesqlNode],
        scope: EvaluationScope<'e>,
    ) -> Result<CesqlValue<'e>, CesqlError<'e>> {
        let (first, others) = match arguments.split_first() {
            Some((first, others)) => (evaluate(first, scope)?, others),
            None => return Ok(CesqlValue::Text(Cow::Borrowed(""))), // CONCAT()
        };
        // Every function processes its text once or twice; CONCAT copies each argument once.
        scope.steps.take_text(2 * first.text_bytes())?;
        let number = |at: usize| others.get(at).map(|node| evaluate(node, scope)?.integer()).transpose();
        Ok(match self {
            Self::Length => CesqlValue::Integer(count(&first.text())?),
            Self::Concat => CesqlValue::Text(join(Some(first), "", others, scope)?),
            Self::ConcatWs => CesqlValue::Text(join(None, &first.text(), others, scope)?),
            Self::Lower | Self::Upper => {
                let text = first.text();
                scope.steps.take(text.len())?; // character by character
                CesqlValue::Text(if self == Self::Lower { lower(text) } else { upper(text) })
            }
            Self::Trim => CesqlValue::Text(cut(first.text(), |text| text.trim())),
            Self::Left => CesqlValue::Text(left(first.text(), number(0)?.unwrap_or_default())?),
            Self::Right => CesqlValue::Text(right(first.text(), number(0)?.unwrap_or_default())?),
            Self::Substring => {
                let position = number(0)?.unwrap_or_default();
                CesqlValue::Text(substring(first.text(), position, number(1)?)?)
            }
            Self::Abs => CesqlValue::Integer(first.integer()?.checked_abs().ok_or(CesqlError::Overflow)?),
            Self::Int => CesqlValue::Integer(first.integer()?),
            Self::Bool => CesqlValue::Boolean(first.boolean()?),
            Self::String => CesqlValue::Text(first.text()),
            Self::IsInt => CesqlValue::Boolean(first.integer().is_ok()),
            Self::IsBool => CesqlValue::Boolean(first.boolean().is_ok()),
        })
    }
}

fn count<'e>(text: &str) -> Result<i32, CesqlError<'e>> {
    i32::try_from(text.chars().count()).map_err(|_| CesqlError::Overflow)
}

/// Allocates: the result is a new text.
fn join<'e>(
    first: Option<CesqlValue<'e>>,
    separator: &str,
    others: &'e [CesqlNode],
    scope: EvaluationScope<'e>,
) -> Result<Cow<'e, str>, CesqlError<'e>> {
    let mut is_begun = first.is_some();
    let mut joined = first.map(|first| first.text().into_owned()).unwrap_or_default();
    for other in others {
        let other = evaluate(other, scope)?.text();
        scope.steps.take_text(separator.len() + other.len())?;
        if joined.len() + separator.len() + other.len() > TEXT_BYTES_MAX {
            return Err(CesqlError::TooLong);
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

fn left<'e>(text: Cow<'e, str>, characters: i32) -> Result<Cow<'e, str>, CesqlError<'e>> {
    let characters = usize::try_from(characters).map_err(|_| CesqlError::Argument("LEFT"))?;
    Ok(cut(text, |text| &text[..offset(text, characters)]))
}

fn right<'e>(text: Cow<'e, str>, characters: i32) -> Result<Cow<'e, str>, CesqlError<'e>> {
    let characters = usize::try_from(characters).map_err(|_| CesqlError::Argument("RIGHT"))?;
    let skipped = text.chars().count().saturating_sub(characters);
    Ok(cut(text, |text| &text[offset(text, skipped)..]))
}

/// From `position`, counted from 1 or from the end; position 0 returns an empty text.
fn substring<'e>(text: Cow<'e, str>, position: i32, length: Option<i32>) -> Result<Cow<'e, str>, CesqlError<'e>> {
    const OUT: CesqlError<'static> = CesqlError::Argument("SUBSTRING");
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
