//! The time series as CSV (RFC 4180), one line for each interval.

use std::fmt::Write as _;

use super::Report;

const HEADER: &str =
    "test,target,second,responses,responses_per_second,error_responses,failures,bytes,p50_us,p99_us,max_us";

/// A header line, and a line for each interval of each test.
#[must_use]
pub fn to_csv(report: &Report) -> String {
    let mut out = format!("{HEADER}\r\n");
    for (name, result) in report.results() {
        for point in &result.series {
            let counts = &point.counts;
            let us = |time: std::time::Duration| time.as_secs_f64() * 1e6;
            // Writing to a string cannot fail.
            let _ = write!(
                out,
                "{},{},{:.3},{},{:.1},{},{},{},{:.1},{:.1},{:.1}\r\n",
                quoted(&name),
                quoted(&result.target),
                point.end.as_secs_f64(),
                counts.responses,
                point.rate(),
                counts.error_responses,
                counts.failures,
                counts.bytes,
                us(point.p50),
                us(point.p99),
                us(point.max),
            );
        }
    }
    out
}

/// A field, in quotes where it needs them.
fn quoted(text: &str) -> String {
    if text.contains(['"', ',', '\r', '\n']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::super::example;
    use super::*;

    #[test]
    fn csv_has_a_line_for_each_interval() {
        let text = to_csv(&Report::Tests(vec![example::result(), example::result()]));
        let lines: Vec<_> = text.split_terminator("\r\n").collect();
        assert_eq!((lines.len(), lines[0]), (9, HEADER));
        let fields = HEADER.split(',').count();
        assert!(lines.iter().all(|line| line.split(',').count() == fields), "{text}");
        assert!(lines[1].starts_with("step 1,http://127.0.0.1:81/a?b=<c>&d,1.000,1000,1000.0,100,1,100000,"), "{text}");
        assert!(lines[8].starts_with("step 2,"), "{text}");
    }

    #[test]
    fn field_with_separator_is_quoted() {
        for (text, field) in [("a", "a"), ("a,b", "\"a,b\""), ("a\"b", "\"a\"\"b\""), ("a\nb", "\"a\nb\"")] {
            assert_eq!(quoted(text), field);
        }
    }
}
