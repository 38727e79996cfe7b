//! CloudEvents SQL: an expression over an event's attributes.
//!
//! [`parse`] builds a [`CesqlExpression`] once, where a Trigger is admitted and again where it is compiled;
//! [`CesqlExpression::evaluate`] reads the attributes in place in the log. The language is total, and every
//! evaluation has a budget of [`Steps`]: an exceeded budget is an error like any other.
//!
//! Operator precedence, tightest first (the reference grammar's order, which is not SQL's): `NOT` and `-`,
//! then `LIKE` and `IN`, then `* / %`, then `+ -`, then comparisons, all of them grouped from the left;
//! last `AND OR XOR`, which have equal precedence and group from the right: `a AND b OR c` is `a AND (b OR
//! c)`. Every attribute is a String until an operator requires another type, so that binary and structured
//! mode give the same result (AMB-45).

mod eval;
mod functions;
mod lexer;
mod parser;
mod pattern;
mod value;

use std::fmt;

pub(super) use eval::attribute;
pub use value::{CesqlError, CesqlValue};

use codec::record::EventRecord;

use self::eval::EvaluationScope;
use self::functions::CesqlFunction;
use self::pattern::LikePattern;
use super::steps::Steps;

/// Longest expression, in bytes. Evaluation is linear in it, and runs for every event.
pub const EXPRESSION_BYTES_MAX: usize = 8 << 10;

/// Deepest nesting, in levels: parentheses, arguments, and operators that group from the left. Parsing,
/// evaluating and dropping an expression take one stack frame for each.
pub const DEPTH_MAX: usize = 100;

/// Longest text that functions of an expression build, in bytes: many times the usual attributes, and a
/// bound on what one event can make a core allocate.
pub const TEXT_BYTES_MAX: usize = 64 << 10;

/// A parsed expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CesqlExpression {
    root: CesqlNode,
}

/// Where and why a text is not an expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CesqlParseError {
    /// The first invalid character, counted from 1.
    pub position: usize,
    pub reason: String,
}

impl fmt::Display for CesqlParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at character {}: {}", self.position, self.reason)
    }
}

impl std::error::Error for CesqlParseError {}

/// Parses an expression. Never panics, whatever the text.
pub fn parse(text: &str) -> Result<CesqlExpression, CesqlParseError> {
    if text.len() > EXPRESSION_BYTES_MAX {
        let reason = format!("the expression has {} bytes, {EXPRESSION_BYTES_MAX} is the limit", text.len());
        return Err(CesqlParseError { position: 1, reason });
    }
    parser::parse(text).map(|root| CesqlExpression { root })
}

impl CesqlExpression {
    /// The expression's value for this event.
    pub fn evaluate<'e>(&'e self, event: &'e EventRecord, steps: &'e Steps) -> Result<CesqlValue<'e>, CesqlError<'e>> {
        eval::evaluate(&self.root, EvaluationScope { event, steps })
    }

    /// The calls of unknown functions, in order, with their spelling and number of arguments: when one is
    /// evaluated, the expression fails (X-SQL-06).
    #[must_use]
    pub fn missing_functions(&self) -> Vec<String> {
        let mut missing = Vec::new();
        self.root.find_missing(&mut missing);
        missing
    }

    /// Whether the value is the Boolean `true`; an error or another type is not (X-FLT-09).
    #[must_use]
    pub fn holds(&self, event: &EventRecord, steps: &Steps) -> bool {
        match &self.root {
            CesqlNode::Text(_)
            | CesqlNode::Integer(_)
            | CesqlNode::Attribute(_)
            | CesqlNode::Minus(_)
            | CesqlNode::Arithmetic(..) => false,
            CesqlNode::Call(..) | CesqlNode::MissingFunction(..) => {
                matches!(self.evaluate(event, steps), Ok(CesqlValue::Boolean(true)))
            }
            _ => eval::truth(&self.root, EvaluationScope { event, steps }) == Ok(true),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum CesqlNode {
    Text(Box<str>),
    Integer(i32),
    Boolean(bool),
    /// Lower case, like all names of attributes.
    Attribute(Box<str>),
    Exists(Box<str>),
    Not(Box<CesqlNode>),
    Minus(Box<CesqlNode>),
    Arithmetic(Arithmetic, Box<[CesqlNode; 2]>),
    Compare(Compare, Box<[CesqlNode; 2]>),
    /// `first AND (a OR (b XOR …))`, flat, because long chains are common.
    Logic(Box<CesqlNode>, Vec<(Logic, CesqlNode)>),
    Like(Box<CesqlNode>, LikePattern),
    In(Box<CesqlNode>, Vec<CesqlNode>),
    Call(CesqlFunction, Vec<CesqlNode>),
    /// A call of an unknown function: an error when it is evaluated (X-SQL-06).
    MissingFunction(Box<str>, usize),
}

impl CesqlNode {
    /// As deep as the expression, which has a limit.
    fn find_missing(&self, missing: &mut Vec<String>) {
        match self {
            Self::Text(_) | Self::Integer(_) | Self::Boolean(_) | Self::Attribute(_) | Self::Exists(_) => {}
            Self::Not(inner) | Self::Minus(inner) | Self::Like(inner, _) => inner.find_missing(missing),
            Self::Arithmetic(_, both) | Self::Compare(_, both) => {
                both.iter().for_each(|one| one.find_missing(missing));
            }
            Self::Logic(first, others) => {
                first.find_missing(missing);
                others.iter().for_each(|(_, one)| one.find_missing(missing));
            }
            Self::In(wanted, members) => {
                wanted.find_missing(missing);
                members.iter().for_each(|one| one.find_missing(missing));
            }
            Self::Call(_, arguments) => arguments.iter().for_each(|one| one.find_missing(missing)),
            Self::MissingFunction(name, arguments) => {
                let plural = if *arguments == 1 { "" } else { "s" };
                missing.push(format!("{name} with {arguments} argument{plural}"));
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
    Modulo,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compare {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Logic {
    And,
    Or,
    Xor,
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
