//! Evaluates a JSONata expression on a thread of its own, within limits.
//!
//! The library checks depth and time at each step of an expression. A built-in function may still take long or allocate much,
//! so this runs only in a process of its own: [`EVALUATION_TIME_MAX`] ends the process, and its memory limit does too.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use serde_json::{Number, Value};
use seuil::{EvalConfig, Seuil};
use tokio::sync::oneshot;

/// The time for one event, in milliseconds; checked at each step.
const STEP_TIME_MAX_MS: u64 = 1_000;
/// If an evaluation takes longer, a built-in function does not return: the process ends and is started again.
const EVALUATION_TIME_MAX: Duration = Duration::from_secs(10);
/// Nested steps. Recursion of usual expressions is far below.
const DEPTH_MAX: usize = 500;
/// Bytes of stack for the parser and for [`DEPTH_MAX`]; memory is taken only as it is used.
const STACK_BYTES: usize = 256 << 20;
/// Bytes of an expression: bounds the recursion of the parser, which takes up to 64 KiB of the stack for an operator.
const EXPRESSION_BYTES_MAX: usize = 16 << 10;
/// Open brackets, and signs in a row: the parser takes most of the stack for these.
const NESTING_MAX: usize = 200;
/// The largest integer that a JSON number of JavaScript holds exactly.
const INTEGER_MAX: f64 = 9_007_199_254_740_992.0;

/// Why an event has no result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EvaluationError {
    /// The expression failed for this event.
    Expression(String),
    /// The process is ending.
    Ended,
}

struct Job {
    input: Value,
    /// Sent when its evaluation begins: the time in the queue is that of other events.
    begun: oneshot::Sender<()>,
    result: oneshot::Sender<Result<Value, String>>,
}

/// A compiled expression.
pub(super) struct Engine {
    jobs: mpsc::Sender<Job>,
    /// [`EVALUATION_TIME_MAX`], or less in tests.
    time_max: Duration,
}

impl Engine {
    /// Compiles an expression, and starts its thread.
    pub(super) fn start(expression: &str) -> Result<Engine, String> {
        if expression.len() > EXPRESSION_BYTES_MAX {
            return Err(format!("the expression has {} bytes, limit {EXPRESSION_BYTES_MAX}", expression.len()));
        }
        if nesting(expression) > NESTING_MAX {
            return Err(format!("the expression is nested more than {NESTING_MAX} deep"));
        }
        let (jobs, queue) = mpsc::channel();
        let (compiled, is_compiled) = mpsc::channel();
        let expression = expression.to_owned();
        let run = move || match Seuil::compile(&expression) {
            Ok(expression) => {
                // An error means that the adapter is gone.
                let _ = compiled.send(Ok(()));
                serve(&expression, &queue);
            }
            Err(why) => drop(compiled.send(Err(why.to_string()))),
        };
        let thread = thread::Builder::new().name("jsonata".to_owned()).stack_size(STACK_BYTES).spawn(run);
        thread.map_err(|why| format!("start a thread: {why}"))?;
        is_compiled.recv().unwrap_or_else(|_| Err("the expression cannot be parsed".to_owned()))?;
        Ok(Engine { jobs, time_max: EVALUATION_TIME_MAX })
    }

    pub(super) async fn evaluate(&self, input: Value) -> Result<Value, EvaluationError> {
        let ((begun, begins), (result, evaluated)) = (oneshot::channel(), oneshot::channel());
        self.jobs.send(Job { input, begun, result }).map_err(|_| EvaluationError::Ended)?;
        begins.await.map_err(|_| EvaluationError::Ended)?;
        match tokio::time::timeout(self.time_max, evaluated).await {
            Ok(Ok(result)) => result.map_err(EvaluationError::Expression),
            Ok(Err(_)) => Err(EvaluationError::Ended),
            Err(_) => {
                tracing::error!("an event took longer than {:?}; the adapter ends and is started again", self.time_max);
                std::process::exit(1)
            }
        }
    }
}

/// The most brackets that are open at a place outside of texts, with the signs in a row there.
fn nesting(expression: &str) -> usize {
    let (mut open, mut signs, mut most, mut quote) = (0_usize, 0_usize, 0_usize, None);
    let mut bytes = expression.bytes();
    while let Some(byte) = bytes.next() {
        if let Some(end) = quote {
            match byte {
                b'\\' => {
                    bytes.next();
                }
                _ if byte == end => quote = None,
                _ => {}
            }
            continue;
        }
        signs = match byte {
            b'-' => signs + 1,
            byte if byte.is_ascii_whitespace() => signs,
            _ => 0,
        };
        match byte {
            b'\'' | b'"' | b'`' => quote = Some(byte),
            b'(' | b'[' | b'{' => open += 1,
            b')' | b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        most = most.max(open + signs);
    }
    most
}

fn serve(expression: &Seuil, queue: &mpsc::Receiver<Job>) {
    let limits =
        EvalConfig { max_depth: Some(DEPTH_MAX), time_limit_ms: Some(STEP_TIME_MAX_MS), ..EvalConfig::default() };
    while let Ok(Job { input, begun, result }) = queue.recv() {
        if begun.send(()).is_err() {
            continue; // the sender has given up
        }
        let evaluated = expression.evaluate_with_config(&input, &limits).map(integers).map_err(|why| why.to_string());
        // An error means that the client is gone.
        let _ = result.send(evaluated);
    }
}

/// Whole numbers without a fraction, as JavaScript writes them: the library computes with floating-point numbers only.
fn integers(value: Value) -> Value {
    match value {
        Value::Number(number) => match number.as_f64() {
            #[expect(clippy::cast_possible_truncation, reason = "a whole number below INTEGER_MAX")]
            Some(float) if float.fract() == 0.0 && float.abs() < INTEGER_MAX => {
                Value::Number(Number::from(float as i64))
            }
            _ => Value::Number(number),
        },
        Value::Array(values) => values.into_iter().map(integers).collect(),
        Value::Object(fields) => fields.into_iter().map(|(name, value)| (name, integers(value))).collect(),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn evaluated(expression: &str, input: Value) -> Result<Value, EvaluationError> {
        let engine = Engine::start(expression).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(engine.evaluate(input))
    }

    #[test]
    fn expression_makes_another_object() {
        let expression = r#"{ "id": id, "total": $sum(data.items.(price * count)), "names": data.items.name }"#;
        let items = json!([{ "name": "a", "price": 1.5, "count": 2 }, { "name": "b", "price": 2, "count": 1 }]);
        let found = evaluated(expression, json!({ "id": "7", "data": { "items": items } }));
        assert_eq!(found, Ok(json!({ "id": "7", "total": 5, "names": ["a", "b"] })));
        assert_eq!(evaluated("a + 0.25", json!({ "a": 1 })), Ok(json!(1.25)));
    }

    /// If the time in the queue counted, this would end the process of the tests.
    #[test]
    fn time_in_the_queue_is_not_time_of_the_evaluation() {
        let (jobs, _queue) = mpsc::channel();
        let engine = Engine { jobs, time_max: Duration::from_millis(1) };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let wait = Duration::from_millis(100);
        let queued = runtime.block_on(async { tokio::time::timeout(wait, engine.evaluate(json!({}))).await });
        assert!(queued.is_err(), "nothing takes events from the queue");
    }

    #[test]
    fn event_whose_sender_is_gone_is_not_evaluated() {
        let engine = Engine::start("id").unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            drop(engine.evaluate(json!({ "id": 1 })));
            assert_eq!(engine.evaluate(json!({ "id": 2 })).await, Ok(json!(2)));
        });
    }

    #[test]
    fn expression_that_is_wrong_is_named() {
        for expression in ["(", "{ \"a\": }", "$sum("] {
            assert!(Engine::start(expression).is_err(), "{expression}");
        }
        let long = "a".repeat(EXPRESSION_BYTES_MAX + 1);
        assert!(Engine::start(&long).err().is_some_and(|why| why.contains("limit")));
        assert!(matches!(evaluated("$sum(\"a\")", json!({})), Err(EvaluationError::Expression(_))));
    }

    #[test]
    fn expression_without_end_is_stopped() {
        for expression in [
            "( $f := function($n) { $f($n + 1) + 1 }; $f(0) )",
            "( $f := function($n) { $f($n) }; $f(0) )",
            "$sum($map([1..1000000], function($a) { $sum($map([1..1000000], function($b) { $a * $b })) }))",
        ] {
            assert!(matches!(evaluated(expression, json!({})), Err(EvaluationError::Expression(_))), "{expression}");
        }
        for nested in ["(", "[", "- ", "$f({'a':"] {
            let why = Engine::start(&nested.repeat(NESTING_MAX + 1)).err();
            assert!(why.is_some_and(|why| why.contains("nested")), "{nested}");
        }
        // The longest chains that are not brackets.
        for (chain, end) in [("a?b:", "c"), ("a.", "a"), ("a~>", "b"), ("1+", "1")] {
            let long = chain.repeat(EXPRESSION_BYTES_MAX / chain.len() - 1) + end;
            assert!(Engine::start(&long).is_ok(), "{chain}");
        }
        assert_eq!(nesting(r#"f("((\"((", '[[') ? {"a": [1]} : `((`"#), 2);
    }
}
