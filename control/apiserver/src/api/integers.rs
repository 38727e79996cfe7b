//! Integers in JSON, in any notation.

use serde_json::Value;

/// `3.0` and `1e2` are 3 and 100, as a Kubernetes server writes them: a client that was made from Go types reads no
/// fraction into a whole number, and one such object would blind it to the whole list. Recursion
/// is bounded by the parser that made the value.
pub(super) fn normalize(value: &mut Value) {
    match value {
        Value::Number(number) if number.is_f64() => {
            if let Some(whole) = number.as_f64().and_then(as_integer) {
                *value = whole.into();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(normalize),
        Value::Object(fields) => fields.values_mut().for_each(normalize),
        _ => {}
    }
}

fn as_integer(number: f64) -> Option<i64> {
    /// 2^63, exactly; the least number is as far on the other side.
    const TWO_POW_63: f64 = 9_223_372_036_854_775_808.0;
    #[expect(clippy::cast_possible_truncation, reason = "whole, and in range")]
    (number.fract() == 0.0 && (-TWO_POW_63..TWO_POW_63).contains(&number)).then_some(number as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// APP-37
    #[test]
    fn a_whole_number_has_no_fraction_and_others_stay() {
        for (written, expected) in [
            ("3.0", "3"),
            ("1e2", "100"),
            ("-0.0", "0"),
            ("0.5e1", "5"),
            ("-9223372036854775808.0", "-9223372036854775808"),
            ("9223372036854775808.0", "9.223372036854776e+18"),
            ("9223372036854775808", "9223372036854775808"),
            ("0.5", "0.5"),
            (r#"{"a":[1.0,{"b":2.0,"c":"3.0"}]}"#, r#"{"a":[1,{"b":2,"c":"3.0"}]}"#),
        ] {
            let mut value: Value = serde_json::from_str(written).unwrap();
            normalize(&mut value);
            assert_eq!(value.to_string(), expected, "{written}");
        }
    }
}
