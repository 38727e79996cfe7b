//! CloudEvents SQL: an expression over an event's attributes.
//!
//! [`parse`] makes an [`Expression`] once, where a Trigger is admitted and again where it is compiled;
//! [`Expression::evaluate`] reads the attributes where they stand in the log. The language is total, and
//! every evaluation has a budget of [`Steps`]: one that is used up is an error like any other.
//!
//! How tightly operators bind, tightest first (the reference grammar's order, which is not SQL's):
//! `NOT` and `-`, then `LIKE` and `IN`, then `* / %`, then `+ -`, then comparisons, all of them grouped
//! from the left; last `AND OR XOR`, which bind alike and group from the right: `a AND b OR c` is
//! `a AND (b OR c)`. Every attribute is a String until an operator asks for another type, so that
//! binary and structured mode give the same result (AMB-45).

mod eval;
mod functions;
mod lexer;
mod parser;
mod pattern;
mod value;

use std::fmt;

pub(super) use eval::attribute;
pub use value::{Fault, Value};

use self::eval::Scope;
use self::functions::Function;
use self::pattern::Pattern;
use super::steps::Steps;
use crate::events::record::Record;

/// Longest expression, in bytes. Evaluation is linear in it, and one stands in front of every event.
pub const EXPRESSION_BYTES_MAX: usize = 8 << 10;

/// Deepest nesting, in levels: parentheses, arguments, and operators that group from the left. Parsing,
/// evaluating and dropping an expression take one frame of the stack for each.
pub const DEPTH_MAX: usize = 100;

/// Longest text that functions of an expression put together, in bytes: many times what attributes
/// are made of, and a bound on what one event can make a core allocate.
pub const TEXT_BYTES_MAX: usize = 64 << 10;

/// A parsed expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expression {
    root: Node,
}

/// Where and why a text is not an expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseError {
    /// The first character that does not fit, counted from 1.
    pub position: usize,
    pub reason: String,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at character {}: {}", self.position, self.reason)
    }
}

impl std::error::Error for ParseError {}

/// Reads an expression. Never panics, whatever the text.
pub fn parse(text: &str) -> Result<Expression, ParseError> {
    if text.len() > EXPRESSION_BYTES_MAX {
        let reason = format!("the expression has {} bytes, {EXPRESSION_BYTES_MAX} is the limit", text.len());
        return Err(ParseError { position: 1, reason });
    }
    parser::parse(text).map(|root| Expression { root })
}

impl Expression {
    /// The expression's value for this event.
    pub fn evaluate<'e>(&'e self, event: &'e Record, steps: &'e Steps) -> Result<Value<'e>, Fault<'e>> {
        eval::evaluate(&self.root, Scope { event, steps })
    }

    /// The calls that no function answers to, in order, as they are written and with their number of arguments:
    /// where one is reached, the expression fails (X-SQL-06).
    #[must_use]
    pub fn missing_functions(&self) -> Vec<String> {
        let mut missing = Vec::new();
        self.root.find_missing(&mut missing);
        missing
    }

    /// Whether the value is the Boolean `true`; an error or another type is not (X-FLT-09).
    #[must_use]
    pub fn holds(&self, event: &Record, steps: &Steps) -> bool {
        match &self.root {
            Node::Text(_) | Node::Integer(_) | Node::Attribute(_) | Node::Minus(_) | Node::Arithmetic(..) => {
                false
            }
            Node::Call(..) | Node::MissingFunction(..) => {
                matches!(self.evaluate(event, steps), Ok(Value::Boolean(true)))
            }
            _ => eval::truth(&self.root, Scope { event, steps }) == Ok(true),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Node {
    Text(Box<str>),
    Integer(i32),
    Boolean(bool),
    /// Lower case, like all names of attributes.
    Attribute(Box<str>),
    Exists(Box<str>),
    Not(Box<Node>),
    Minus(Box<Node>),
    Arithmetic(Arithmetic, Box<[Node; 2]>),
    Compare(Compare, Box<[Node; 2]>),
    /// `first AND (a OR (b XOR …))`, flat, because people write long ones.
    Logic(Box<Node>, Vec<(Logic, Node)>),
    Like(Box<Node>, Pattern),
    In(Box<Node>, Vec<Node>),
    Call(Function, Vec<Node>),
    /// A call that no function answers to: an error when it is evaluated (X-SQL-06).
    MissingFunction(Box<str>, usize),
}

impl Node {
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
