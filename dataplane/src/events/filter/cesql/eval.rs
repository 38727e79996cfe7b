//! The value of an expression for one event. Stops at the first error: what comes of an event does not
//! depend on the others (X-SQL-06).

use std::borrow::Cow;

use super::{Arithmetic, Compare, Fault, Logic, Node, Value};
use crate::events::record::Record;

pub(super) fn evaluate<'e>(node: &'e Node, event: &'e Record) -> Result<Value<'e>, Fault<'e>> {
    match node {
        Node::Text(text) => Ok(Value::Text(Cow::Borrowed(text))),
        Node::Integer(number) => Ok(Value::Integer(*number)),
        Node::Boolean(yes) => Ok(Value::Boolean(*yes)),
        Node::Attribute(name) => match attribute(event, name) {
            Some(value) => Ok(Value::Text(Cow::Borrowed(value))),
            None => Err(Fault::MissingAttribute(name)),
        },
        Node::Exists(name) => Ok(Value::Boolean(attribute(event, name).is_some())),
        Node::Not(operand) => Ok(Value::Boolean(!evaluate(operand, event)?.boolean()?)),
        Node::Minus(operand) => {
            evaluate(operand, event)?.integer()?.checked_neg().map(Value::Integer).ok_or(Fault::Overflow)
        }
        Node::Arithmetic(operator, operands) => {
            let [left, right] = &**operands;
            let left = evaluate(left, event)?.integer()?;
            calculate(*operator, left, evaluate(right, event)?.integer()?).map(Value::Integer)
        }
        Node::Compare(operator, operands) => {
            let [left, right] = &**operands;
            let left = evaluate(left, event)?;
            compare(*operator, left, &evaluate(right, event)?).map(Value::Boolean)
        }
        Node::Logic(first, rest) => logic(first, rest, event).map(Value::Boolean),
        Node::Like(text, pattern) => Ok(Value::Boolean(pattern.matches(&evaluate(text, event)?.text()))),
        Node::In(wanted, members) => is_among(evaluate(wanted, event)?, members, event).map(Value::Boolean),
        Node::Call(function, arguments) => function.call(arguments, event),
        Node::MissingFunction(name, _) => Err(Fault::MissingFunction(name)),
    }
}

/// CloudEvents 0.3 called `dataschema` `schemaurl`; either name finds either (X-FLT-12).
pub(in crate::events::filter) fn attribute<'e>(event: &'e Record, name: &str) -> Option<&'e str> {
    event.attribute(name).or_else(|| match name {
        "dataschema" => event.attribute("schemaurl"),
        "schemaurl" => event.attribute("dataschema"),
        _ => None,
    })
}

fn calculate<'e>(operator: Arithmetic, left: i32, right: i32) -> Result<i32, Fault<'e>> {
    let result = match operator {
        Arithmetic::Add => left.checked_add(right),
        Arithmetic::Subtract => left.checked_sub(right),
        Arithmetic::Multiply => left.checked_mul(right),
        Arithmetic::Divide | Arithmetic::Modulo if right == 0 => return Err(Fault::DivisionByZero),
        Arithmetic::Divide => left.checked_div(right),
        Arithmetic::Modulo => left.checked_rem(right),
    };
    result.ok_or(Fault::Overflow)
}

fn compare<'e>(operator: Compare, left: Value<'e>, right: &Value<'e>) -> Result<bool, Fault<'e>> {
    Ok(match operator {
        Compare::Equal => left.equals(right)?,
        Compare::NotEqual => !left.equals(right)?,
        Compare::Less => left.integer()? < right.integer()?,
        Compare::LessOrEqual => left.integer()? <= right.integer()?,
        Compare::Greater => left.integer()? > right.integer()?,
        Compare::GreaterOrEqual => left.integer()? >= right.integer()?,
    })
}

/// `first op (second op (…))`. A left side either settles the rest, or leaves the rest as the result, or
/// leaves its opposite (`TRUE XOR rest`): so all there is to carry along is whether to turn it.
fn logic<'e>(first: &'e Node, rest: &'e [(Logic, Node)], event: &'e Record) -> Result<bool, Fault<'e>> {
    let mut turn = false;
    let mut left = evaluate(first, event)?.boolean()?;
    for (operator, right) in rest {
        match operator {
            Logic::And if !left => break,
            Logic::Or if left => break,
            Logic::And | Logic::Or => {}
            Logic::Xor => turn ^= left,
        }
        left = evaluate(right, event)?.boolean()?;
    }
    Ok(turn ^ left)
}

/// Members are made the type of what is looked for, one after the other until one is equal.
fn is_among<'e>(wanted: Value<'e>, members: &'e [Node], event: &'e Record) -> Result<bool, Fault<'e>> {
    for member in members {
        if evaluate(member, event)?.equals(&wanted)? {
            return Ok(true);
        }
    }
    Ok(false)
}
