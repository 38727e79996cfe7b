//! Evaluates an expression for one event. Stops at the first error: the result of an event does not depend
//! on others (X-SQL-06).

use std::borrow::Cow;

use codec::record::EventRecord;

use super::{Arithmetic, CesqlError, CesqlNode, CesqlValue, Compare, Logic};
use crate::filter::steps::{OverBudget, Steps};

/// One evaluation: the event, and its remaining steps.
#[derive(Debug, Clone, Copy)]
pub(super) struct EvaluationScope<'e> {
    pub(super) event: &'e EventRecord,
    pub(super) steps: &'e Steps,
}

impl<'e> EvaluationScope<'e> {
    /// An attribute by either of its names; takes steps for its length.
    fn attribute(self, name: &str) -> Result<Option<&'e str>, CesqlError<'e>> {
        let found = attribute(self.event, name);
        self.steps.take_text(found.map_or(0, str::len))?;
        Ok(found)
    }

    /// The same for a comparison of bytes: equal bytes are equal texts, and need no check.
    fn bytes(self, name: &'e str) -> Result<&'e [u8], CesqlError<'e>> {
        self.steps.take(1)?;
        attribute_bytes(self.event, name).ok_or(CesqlError::MissingAttribute(name))
    }
}

impl From<OverBudget> for CesqlError<'_> {
    fn from(_: OverBudget) -> Self {
        Self::OverBudget
    }
}

pub(super) fn evaluate<'e>(node: &'e CesqlNode, scope: EvaluationScope<'e>) -> Result<CesqlValue<'e>, CesqlError<'e>> {
    scope.steps.take(1)?;
    match node {
        CesqlNode::Text(text) => Ok(CesqlValue::Text(Cow::Borrowed(text))),
        CesqlNode::Attribute(name) => match scope.attribute(name)? {
            Some(value) => Ok(CesqlValue::Text(Cow::Borrowed(value))),
            None => Err(CesqlError::MissingAttribute(name)),
        },
        CesqlNode::Call(function, arguments) => function.call(arguments, scope),
        CesqlNode::MissingFunction(name, _) => Err(CesqlError::MissingFunction(name)),
        CesqlNode::Integer(_) | CesqlNode::Minus(_) | CesqlNode::Arithmetic(..) => {
            integer(node, scope).map(CesqlValue::Integer)
        }
        CesqlNode::Boolean(_)
        | CesqlNode::Exists(_)
        | CesqlNode::Not(_)
        | CesqlNode::Compare(..)
        | CesqlNode::Logic(..)
        | CesqlNode::Like(..)
        | CesqlNode::In(..) => truth(node, scope).map(CesqlValue::Boolean),
    }
}

/// The value as a Boolean. Most of an expression consists of these, so they bypass [`CesqlValue`].
pub(super) fn truth<'e>(node: &'e CesqlNode, scope: EvaluationScope<'e>) -> Result<bool, CesqlError<'e>> {
    scope.steps.take(1)?;
    match node {
        CesqlNode::Boolean(yes) => Ok(*yes),
        CesqlNode::Exists(name) => Ok(attribute_bytes(scope.event, name).is_some()),
        CesqlNode::Not(operand) => Ok(!truth(operand, scope)?),
        CesqlNode::Compare(operator, operands) => {
            let [left, right] = &**operands;
            compare(*operator, left, right, scope)
        }
        CesqlNode::Logic(first, rest) => logic(first, rest, scope),
        CesqlNode::Like(text, pattern) => Ok(pattern.matches(&evaluate(text, scope)?.text(), scope.steps)?),
        CesqlNode::In(wanted, members) => is_among(wanted, members, scope),
        other => evaluate(other, scope)?.boolean(),
    }
}

fn integer<'e>(node: &'e CesqlNode, scope: EvaluationScope<'e>) -> Result<i32, CesqlError<'e>> {
    match node {
        CesqlNode::Integer(number) => Ok(*number),
        CesqlNode::Minus(operand) => integer(operand, scope)?.checked_neg().ok_or(CesqlError::Overflow),
        CesqlNode::Arithmetic(operator, operands) => {
            let [left, right] = &**operands;
            let left = integer(left, scope)?;
            calculate(*operator, left, integer(right, scope)?)
        }
        other => evaluate(other, scope)?.integer(),
    }
}

/// CloudEvents 0.3 called `dataschema` `schemaurl`; either name finds either (X-FLT-12).
pub(in crate::filter) fn attribute<'e>(event: &'e EventRecord, name: &str) -> Option<&'e str> {
    event.attribute(name).or_else(|| event.attribute(other_name(name)?))
}

/// The same for comparisons: bytes are equal where texts are, and need no validation.
fn attribute_bytes<'e>(event: &'e EventRecord, name: &str) -> Option<&'e [u8]> {
    event.attribute_bytes(name).or_else(|| event.attribute_bytes(other_name(name)?))
}

fn other_name(name: &str) -> Option<&'static str> {
    match name {
        "dataschema" => Some("schemaurl"),
        "schemaurl" => Some("dataschema"),
        _ => None,
    }
}

fn calculate<'e>(operator: Arithmetic, left: i32, right: i32) -> Result<i32, CesqlError<'e>> {
    let result = match operator {
        Arithmetic::Add => left.checked_add(right),
        Arithmetic::Subtract => left.checked_sub(right),
        Arithmetic::Multiply => left.checked_mul(right),
        Arithmetic::Divide | Arithmetic::Modulo if right == 0 => return Err(CesqlError::DivisionByZero),
        Arithmetic::Divide => left.checked_div(right),
        Arithmetic::Modulo => left.checked_rem(right),
    };
    result.ok_or(CesqlError::Overflow)
}

fn compare<'e>(
    operator: Compare,
    left: &'e CesqlNode,
    right: &'e CesqlNode,
    scope: EvaluationScope<'e>,
) -> Result<bool, CesqlError<'e>> {
    let integers = || -> Result<(i32, i32), CesqlError<'e>> {
        // Both are evaluated before either is converted to a number: which error is reported does not
        // depend on the other.
        let (left, right) = (evaluate(left, scope)?, evaluate(right, scope)?);
        Ok((left.integer()?, right.integer()?))
    };
    Ok(match operator {
        Compare::Equal => equal(left, right, scope)?,
        Compare::NotEqual => !equal(left, right, scope)?,
        Compare::Less => integers().map(|(left, right)| left < right)?,
        Compare::LessOrEqual => integers().map(|(left, right)| left <= right)?,
        Compare::Greater => integers().map(|(left, right)| left > right)?,
        Compare::GreaterOrEqual => integers().map(|(left, right)| left >= right)?,
    })
}

fn equal<'e>(left: &'e CesqlNode, right: &'e CesqlNode, scope: EvaluationScope<'e>) -> Result<bool, CesqlError<'e>> {
    match (left, right) {
        // The most common form of filters.
        (CesqlNode::Attribute(name), CesqlNode::Text(text)) => Ok(scope.bytes(name)? == text.as_bytes()),
        _ => {
            let left = evaluate(left, scope)?;
            let right = evaluate(right, scope)?;
            scope.steps.take_text(left.text_bytes().min(right.text_bytes()))?;
            left.equals(&right)
        }
    }
}

/// `first op (second op (…))`. A left side either settles the rest, or leaves the rest as the result, or
/// leaves its opposite (`TRUE XOR rest`): so the only state is whether to invert it.
fn logic<'e>(
    first: &'e CesqlNode,
    rest: &'e [(Logic, CesqlNode)],
    scope: EvaluationScope<'e>,
) -> Result<bool, CesqlError<'e>> {
    let mut turn = false;
    let mut left = truth(first, scope)?;
    for (operator, right) in rest {
        match operator {
            Logic::And if !left => break,
            Logic::Or if left => break,
            Logic::And | Logic::Or => {}
            Logic::Xor => turn ^= left,
        }
        left = truth(right, scope)?;
    }
    Ok(turn ^ left)
}

/// Members are converted to the type of the left side, one after the other until one is equal.
fn is_among<'e>(
    wanted: &'e CesqlNode,
    members: &'e [CesqlNode],
    scope: EvaluationScope<'e>,
) -> Result<bool, CesqlError<'e>> {
    if let CesqlNode::Attribute(name) = wanted
        && members.iter().all(|member| matches!(member, CesqlNode::Text(_)))
    {
        let wanted = scope.bytes(name)?;
        scope.steps.take(members.len())?;
        let is_it = |member: &CesqlNode| matches!(member, CesqlNode::Text(text) if text.as_bytes() == wanted);
        return Ok(members.iter().any(is_it));
    }
    let wanted = evaluate(wanted, scope)?;
    for member in members {
        let member = evaluate(member, scope)?;
        scope.steps.take_text(member.text_bytes().min(wanted.text_bytes()))?;
        if member.equals(&wanted)? {
            return Ok(true);
        }
    }
    Ok(false)
}
