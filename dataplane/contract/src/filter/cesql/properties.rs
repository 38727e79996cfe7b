//! Properties of every text and every tree.

use proptest::prelude::*;

use super::tests::sample;
use super::*;

/// Expressions as trees, with their text, every operand in parentheses.
fn written() -> impl Strategy<Value = (CesqlNode, String)> {
    let leaf = prop_oneof![
        any::<i32>().prop_map(|n| (CesqlNode::Integer(n), n.to_string())),
        any::<bool>().prop_map(|b| (CesqlNode::Boolean(b), b.to_string())),
        "[a-z' \"%_é]{0,6}".prop_map(|t| {
            let quoted = format!("'{}'", t.replace('\'', "\\'"));
            (CesqlNode::Text(t.into()), quoted)
        }),
        "[a-z][a-z0-9]{3,8}"
            .prop_filter("no keyword", |name| !["like", "true", "false", "exists"].contains(&&**name))
            .prop_flat_map(|name| prop_oneof![
                Just((CesqlNode::Attribute(name.clone().into()), name.clone())),
                Just((CesqlNode::Exists(name.clone().into()), format!("EXISTS {name}"))),
            ]),
    ];
    leaf.prop_recursive(5, 40, 3, |inner| {
        let pair = (inner.clone(), inner.clone());
        let list = proptest::collection::vec(inner.clone(), 1..4);
        prop_oneof![
            inner.clone().prop_map(|(n, t)| (CesqlNode::Not(Box::new(n)), format!("NOT ({t})"))),
            inner.clone().prop_map(|(n, t)| (CesqlNode::Minus(Box::new(n)), format!("-({t})"))),
            (inner.clone(), "[a%_]{0,4}").prop_map(|((n, t), pattern)| {
                (CesqlNode::Like(Box::new(n), LikePattern::new(&pattern)), format!("({t}) LIKE '{pattern}'"))
            }),
            (pair.clone(), 0_usize..5).prop_map(|(((a, s), (b, t)), at)| {
                let operators = [
                    Arithmetic::Add,
                    Arithmetic::Subtract,
                    Arithmetic::Multiply,
                    Arithmetic::Divide,
                    Arithmetic::Modulo,
                ];
                let spelling = ["+", "-", "*", "/", "%"][at];
                (CesqlNode::Arithmetic(operators[at], Box::new([a, b])), format!("({s}){spelling}({t})"))
            }),
            (pair, 0_usize..6).prop_map(|(((a, s), (b, t)), at)| {
                let operators = [
                    Compare::Equal,
                    Compare::NotEqual,
                    Compare::Less,
                    Compare::LessOrEqual,
                    Compare::Greater,
                    Compare::GreaterOrEqual,
                ];
                let spelling = ["=", "!=", "<", "<=", ">", ">="][at];
                (CesqlNode::Compare(operators[at], Box::new([a, b])), format!("({s}){spelling}({t})"))
            }),
            (inner.clone(), proptest::collection::vec((inner.clone(), 0_usize..3), 1..4)).prop_map(
                |((first, mut text), rest)| {
                    text = format!("({text})");
                    let rest = rest.into_iter().map(|((node, t), at)| {
                        text = format!("{text} {} ({t})", ["and", "OR", "Xor"][at]);
                        ([Logic::And, Logic::Or, Logic::Xor][at], node)
                    });
                    let rest = rest.collect();
                    (CesqlNode::Logic(Box::new(first), rest), text)
                }
            ),
            (inner, list).prop_map(|((n, t), members)| {
                let (nodes, texts): (Vec<_>, Vec<_>) = members.into_iter().unzip();
                (CesqlNode::In(Box::new(n), nodes), format!("({t}) in ({})", texts.join(", ")))
            }),
        ]
    })
}

/// The value according to the rules, without the shortcuts of the evaluator: a chain is split into pairs.
fn slow_logic<'e>(first: bool, rest: &'e [(Logic, CesqlNode)], scope: EvaluationScope<'e>) -> Option<bool> {
    let Some(((operator, next), others)) = rest.split_first() else { return Some(first) };
    let right = || {
        let next = eval::evaluate(next, scope).ok()?.boolean().ok()?;
        slow_logic(next, others, scope)
    };
    match operator {
        Logic::And => {
            if first {
                right()
            } else {
                Some(false)
            }
        }
        Logic::Or => {
            if first {
                Some(true)
            } else {
                right()
            }
        }
        Logic::Xor => right().map(|right| first ^ right),
    }
}

proptest! {
    #[test]
    fn expression_parser_never_panics(text in "\\PC{0,60}") {
        let _ = parse(&text);
    }

    #[test]
    fn token_sequences_never_panic_parser_or_evaluator(
        tokens in proptest::collection::vec(prop_oneof![
            Just("AND"), Just("or"), Just("XOR"), Just("NOT"), Just("LIKE"), Just("IN"), Just("EXISTS"),
            Just("("), Just(")"), Just(","), Just("+"), Just("-"), Just("*"), Just("/"), Just("%"),
            Just("="), Just("<>"), Just("<="), Just("'a%_'"), Just("\"\\\"\""), Just("12"), Just("-2147483648"),
            Just("TRUE"), Just("type"), Just("word"), Just("n"), Just("absent"), Just("SUBSTRING("),
            Just("LEFT("), Just("CONCAT("), Just("ABS("), Just("IS_INT("),
        ], 0..24),
    ) {
        let text = tokens.join(" ");
        if let Ok(expression) = parse(&text) {
            let _ = expression.evaluate(&sample(), &Steps::default());
        }
    }

    #[test]
    fn expression_tree_round_trip_is_exact((tree, text) in written()) {
        let read = parse(&text);
        prop_assert_eq!(read.map(|read| read.root), Ok(tree), "{}", text);
    }

    #[test]
    fn logic_chain_equals_nested_pairs((tree, _) in written()) {
        let (event, steps) = (sample(), Steps::default());
        let scope = EvaluationScope { event: &event, steps: &steps };
        if let CesqlNode::Logic(first, rest) = &tree
            && let Some(first) = eval::evaluate(first, scope).ok().and_then(|first| first.boolean().ok())
        {
            let found = eval::evaluate(&tree, scope).ok().and_then(|found| found.boolean().ok());
            prop_assert_eq!(found, slow_logic(first, rest, scope));
        }
    }

    /// A comparison as bytes has the same result as one as text, and fails where that fails.
    #[test]
    fn byte_comparison_agrees_with_text_comparison(
        name in prop_oneof![Just("type"), Just("source"), Just("subject"), Just("dataschema"), Just("absent")],
        own: bool,
        others in proptest::collection::vec("[a-z/.]{0,4}", 0..3),
    ) {
        let event = sample();
        let text = if own { event.attribute(name).unwrap_or("x").to_owned() } else { "x".to_owned() };
        let list: Vec<_> = others.iter().chain([&text]).map(|text| format!("'{}'", text.replace('\'', "\\'"))).collect();
        let (last, list) = (list.last().cloned().unwrap_or_default(), list.join(", "));
        for (short, long) in [
            (format!("{name} = {last}"), format!("STRING({name}) = {last}")),
            (format!("{name} != {last}"), format!("STRING({name}) != {last}")),
            (format!("{name} IN ({list})"), format!("STRING({name}) IN ({list})")),
        ] {
            let (short, long) = (parse(&short).unwrap(), parse(&long).unwrap());
            let steps = Steps::default();
            prop_assert_eq!(short.evaluate(&event, &steps), long.evaluate(&event, &steps));
            prop_assert_eq!(short.holds(&event, &Steps::default()), long.holds(&event, &Steps::default()));
        }
    }
}
