//! Values, and conversions between the types (X-SQL-05).

use std::borrow::Cow;

/// The value of an expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CesqlValue<'e> {
    Text(Cow<'e, str>),
    Integer(i32),
    Boolean(bool),
}

/// Why an expression has no value for an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CesqlError<'e> {
    #[error("the event has no attribute \"{0}\"")]
    MissingAttribute(&'e str),
    #[error("there is no function {0} with this many arguments")]
    MissingFunction(&'e str),
    #[error("the value is no {0}")]
    Cast(&'static str),
    #[error("division by zero")]
    DivisionByZero,
    #[error("the result is outside -2147483648 to 2147483647")]
    Overflow,
    #[error("the argument of {0} is out of range")]
    Argument(&'static str),
    #[error("the text is longer than {} bytes", super::TEXT_BYTES_MAX)]
    TooLong,
    #[error("the filter takes more than {} steps for this event", crate::limits::FILTER_STEPS_MAX)]
    OverBudget,
}

impl<'e> CesqlValue<'e> {
    pub(super) fn integer(&self) -> Result<i32, CesqlError<'e>> {
        match self {
            Self::Integer(number) => Ok(*number),
            Self::Boolean(yes) => Ok(i32::from(*yes)),
            Self::Text(text) => text.parse().map_err(|_| CesqlError::Cast("Integer")),
        }
    }

    pub(super) fn boolean(&self) -> Result<bool, CesqlError<'e>> {
        match self {
            Self::Boolean(yes) => Ok(*yes),
            Self::Integer(number) => Ok(*number != 0),
            Self::Text(text) if text.eq_ignore_ascii_case("true") => Ok(true),
            Self::Text(text) if text.eq_ignore_ascii_case("false") => Ok(false),
            Self::Text(_) => Err(CesqlError::Cast("Boolean")),
        }
    }

    /// Its length, if it is a text.
    pub(super) fn text_bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Integer(_) | Self::Boolean(_) => 0,
        }
    }

    /// Allocates for an Integer only.
    pub(super) fn text(self) -> Cow<'e, str> {
        match self {
            Self::Text(text) => text,
            Self::Boolean(true) => Cow::Borrowed("true"),
            Self::Boolean(false) => Cow::Borrowed("false"),
            Self::Integer(number) => Cow::Owned(number.to_string()),
        }
    }

    /// Whether `self`, converted to the type of `right`, equals `right`.
    pub(super) fn equals(self, right: &CesqlValue<'_>) -> Result<bool, CesqlError<'e>> {
        Ok(match right {
            CesqlValue::Boolean(yes) => self.boolean()? == *yes,
            CesqlValue::Integer(number) => self.integer()? == *number,
            CesqlValue::Text(text) => self.text() == *text,
        })
    }
}
